package acme;

import com.google.protobuf.Struct;
import com.google.protobuf.Value;
import evald.plugin.v1.Task.EvaluationOutput;
import evald.v1.Context.EvaluatorContext;
import evald.v1.Evaluator.EvaluatorKind;
import evald.v1.Evaluator.EvaluatorType;
import evald.v1.Evaluator.MetricDescriptor;
import evald.v1.Result.Check;
import java.text.BreakIterator;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;

/** A plugin of evald that looks at how easily answers are read. */
public final class Readability {
  private static final String NO_ANSWER = "No assistant message found";
  private static final Pattern WORD = Pattern.compile("[\\p{L}\\p{N}]++(?:['’-][\\p{L}\\p{N}]++)*+");
  // Of LIX, see below.
  private static final int LONG_WORD = 7;

  private static final EvaluatorType SENTENCE_LENGTH =
      EvaluatorType.newBuilder()
          .setType("acme.sentence-length")
          .setVersion("1.0.0")
          .setLabel("Sentence Length")
          .setDescription("No sentence of the answer has more words than allowed.")
          .setKind(EvaluatorKind.EVALUATOR_KIND_ASSERTION)
          .setDeterministic(true)
          .setConfigSchemaJson(
              """
              {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {
                  "maxWords": {"type": "integer", "minimum": 1, "description": "Maximum number of words in a sentence."}
                },
                "required": ["maxWords"],
                "additionalProperties": false
              }
              """)
          .build();

  private static final EvaluatorType READABILITY =
      EvaluatorType.newBuilder()
          .setType("acme.readability")
          .setVersion("1.0.0")
          .setLabel("Readability")
          .setDescription("LIX of the answer: below 30 is a children's book, above 60 a law.")
          .setKind(EvaluatorKind.EVALUATOR_KIND_METRIC)
          .setDeterministic(true)
          .setConfigSchemaJson("{\"type\": \"object\", \"additionalProperties\": false}")
          .setMetric(
              MetricDescriptor.newBuilder()
                  .setHigherIsBetter(false)
                  .setMinimum(0)
                  .addAllBucketBounds(List.of(20., 25., 30., 35., 40., 45., 50., 55., 60., 70.)))
          .build();

  private Readability() {}

  private static EvaluationOutput sentenceLength(EvaluatorContext turn, Struct config) {
    Optional<String> answer = Turns.answer(turn);
    if (answer.isEmpty()) {
      return Plugin.failed(0, NO_ANSWER);
    }
    int maxWords = (int) config.getFieldsOrDefault("maxWords", Value.getDefaultInstance()).getNumberValue();
    if (maxWords < 1) {
      return Plugin.errored("INVALID_CONFIG", "config.maxWords: wanted a whole number of at least 1");
    }
    List<String> tooLong = sentences(answer.get()).stream().filter(each -> words(each).size() > maxWords).toList();
    if (tooLong.isEmpty()) {
      return Plugin.passed(1, "No sentence has more than %d word(s)".formatted(maxWords));
    }
    int longest = tooLong.stream().map(each -> words(each).size()).max(Comparator.naturalOrder()).orElseThrow();
    String reason = "%d sentence(s) have more than %d word(s); the longest has %d";
    EvaluationOutput.Builder output =
        Plugin.failed((double) maxWords / longest, reason.formatted(tooLong.size(), maxWords, longest)).toBuilder();
    for (String sentence : tooLong.subList(0, Math.min(tooLong.size(), 20))) {
      String start = sentence.codePoints().limit(60)
          .collect(StringBuilder::new, StringBuilder::appendCodePoint, StringBuilder::append).toString();
      output.addChecks(Check.newBuilder()
          .setText("at most %d word(s)".formatted(maxWords))
          .setEvidence("%d: %s".formatted(words(sentence).size(), start)));
    }
    return output.build();
  }

  /**
   * LIX: words per sentence plus the percentage of words with more than six letters. Source: C. H. Björnsson,
   * Läsbarhet, Stockholm 1968.
   */
  private static EvaluationOutput readability(EvaluatorContext turn, Struct config) {
    Optional<String> answer = Turns.answer(turn);
    if (answer.isEmpty()) {
      return Plugin.unavailable(NO_ANSWER);
    }
    List<String> words = words(answer.get());
    long sentences = sentences(answer.get()).stream().filter(sentence -> !words(sentence).isEmpty()).count();
    if (sentences == 0) {
      return Plugin.unavailable("No words in the answer");
    }
    long longWords = words.stream().filter(word -> word.codePointCount(0, word.length()) >= LONG_WORD).count();
    double lix = (double) words.size() / sentences + 100. * longWords / words.size();
    return Plugin.measured(lix,
        String.format(Locale.ROOT, "LIX %.1f: %d words in %d sentences, %d of them long", lix, words.size(), sentences,
            longWords));
  }

  private static List<String> sentences(String text) {
    BreakIterator breaks = BreakIterator.getSentenceInstance(Locale.ROOT);
    breaks.setText(text);
    List<String> found = new ArrayList<>();
    int start = breaks.first();
    for (int end = breaks.next(); end != BreakIterator.DONE; start = end, end = breaks.next()) {
      found.add(text.substring(start, end).strip());
    }
    return found;
  }

  private static List<String> words(String text) {
    return WORD.matcher(text).results().map(MatchResult::group).toList();
  }

  public static void main(String[] args) {
    new Plugin("acme.readability", "1.0.0", 16,
        List.of(
            new Plugin.Evaluator(SENTENCE_LENGTH, Readability::sentenceLength),
            new Plugin.Evaluator(READABILITY, Readability::readability)))
        .main(args);
  }
}
