//! What this plugin offers: the assertion `acme.word-limit` and the metric `acme.questions`.

use prost_types::value::Kind;
use prost_types::Struct;
use serde_json::json;

use crate::contract::evald::plugin::v1::EvaluationOutput;
use crate::contract::evald::v1::chat_message::Content;
use crate::contract::evald::v1::{
    ChatMessage, EvaluationError, EvaluatorContext, EvaluatorKind, EvaluatorType, MetricDescriptor, Verdict,
};

const WORD_LIMIT: &str = "acme.word-limit";
const QUESTIONS: &str = "acme.questions";

/// The types, as evald's catalogue shows them.
pub fn types() -> Vec<EvaluatorType> {
    let schema = json!({
        "type": "object",
        "properties": {"maxWords": {"type": "integer", "minimum": 1, "description": "Most words in the answer."}},
        "required": ["maxWords"],
        "additionalProperties": false,
    });
    let no_config = json!({"type": "object", "additionalProperties": false});
    vec![
        EvaluatorType {
            r#type: WORD_LIMIT.to_owned(),
            version: "1.0.0".to_owned(),
            label: "Word limit".to_owned(),
            description: "The answer has at most so many words.".to_owned(),
            kind: EvaluatorKind::Assertion.into(),
            deterministic: true,
            config_schema_json: schema.to_string(),
            ..Default::default()
        },
        EvaluatorType {
            r#type: QUESTIONS.to_owned(),
            version: "1.0.0".to_owned(),
            label: "Questions".to_owned(),
            description: "How many question marks the answer holds.".to_owned(),
            kind: EvaluatorKind::Metric.into(),
            deterministic: true,
            config_schema_json: no_config.to_string(),
            metric: Some(MetricDescriptor { unit: "count".to_owned(), minimum: Some(0.0), ..Default::default() }),
            ..Default::default()
        },
    ]
}

/// Evaluates a turn. evald has checked the config against the type's schema; other callers may not have.
pub fn evaluate(name: &str, version: &str, config: &Struct, turn: &EvaluatorContext) -> EvaluationOutput {
    if !version.is_empty() && version != "1.0.0" {
        return errored("UNKNOWN_TYPE", &format!("{name} is offered in version 1.0.0, not {version}"));
    }
    match name {
        WORD_LIMIT => word_limit(config, turn),
        QUESTIONS if !config.fields.is_empty() => errored("INVALID_CONFIG", "wanted no config"),
        QUESTIONS => match answer(turn) {
            Ok(text) => {
                let count = text.matches(['?', '？']).count();
                passed(|output| output.value = Some(count as f64), format!("{count} question mark(s)"))
            }
            // A metric without data: a 0 that counts nowhere.
            Err(reason) => passed(
                |output| {
                    output.value = Some(0.0);
                    output.metadata = Some(Struct {
                        fields: [("available".to_owned(), false.into())].into(),
                    });
                },
                reason.to_owned(),
            ),
        },
        _ => errored("UNKNOWN_TYPE", &format!("\"{name}\" is not offered by this plugin")),
    }
}

fn word_limit(config: &Struct, turn: &EvaluatorContext) -> EvaluationOutput {
    let limit = match config.fields.get("maxWords").and_then(|value| value.kind.as_ref()) {
        Some(Kind::NumberValue(number)) if *number >= 1.0 && number.fract() == 0.0 => *number as usize,
        _ => return errored("INVALID_CONFIG", "maxWords: wanted a whole number of at least 1"),
    };
    if let Some(unknown) = config.fields.keys().find(|key| *key != "maxWords") {
        return errored("INVALID_CONFIG", &format!("{unknown}: unknown; wanted maxWords alone"));
    }
    let text = match answer(turn) {
        Ok(text) => text,
        Err(reason) => {
            return EvaluationOutput {
                verdict: Verdict::Failed.into(),
                score: Some(0.0),
                reason: reason.to_owned(),
                unproven: true,
                ..Default::default()
            }
        }
    };
    let words = text.split_whitespace().count();
    if words <= limit {
        return passed(|output| output.score = Some(1.0), format!("{words} word(s), at most {limit} allowed"));
    }
    EvaluationOutput {
        verdict: Verdict::Failed.into(),
        score: Some(limit as f64 / words as f64),
        reason: format!("{words} words, {} more than the {limit} allowed", words - limit),
        ..Default::default()
    }
}

/// The turn's answer as evald defines it: the text of its last assistant message that has text. A turn of tool calls
/// alone has none. Err: the reason to give.
fn answer(turn: &EvaluatorContext) -> Result<String, &'static str> {
    let messages = match &turn.last_invocation {
        Some(invocation) if !invocation.messages.is_empty() => &invocation.messages,
        _ => &turn.messages,
    };
    let after_user = messages.iter().rposition(|message| message.role == "user").map_or(0, |last| last + 1);
    let mut texts = messages[after_user..].iter().filter(|message| message.role == "assistant").map(text).peekable();
    if texts.peek().is_none() {
        return Err("No assistant message found");
    }
    texts.flatten().last().ok_or("No assistant message with text")
}

/// A message's text: the string, or its text blocks joined with nothing between; None without any.
fn text(message: &ChatMessage) -> Option<String> {
    let found = match message.content.as_ref()? {
        Content::Text(text) => text.clone(),
        Content::Blocks(list) => list
            .items
            .iter()
            .filter(|block| matches!(block.r#type.as_str(), "text" | "input_text" | "output_text" | ""))
            .filter_map(|block| block.text.as_deref())
            .collect(),
    };
    (!found.is_empty() || message.tool_calls.is_empty()).then_some(found)
}

fn passed(fill: impl FnOnce(&mut EvaluationOutput), reason: String) -> EvaluationOutput {
    let mut output = EvaluationOutput { verdict: Verdict::Passed.into(), reason, ..Default::default() };
    fill(&mut output);
    output
}

/// The output of a task without a verdict. code: one of the list in evald's protos/README.md.
pub fn errored(code: &str, message: &str) -> EvaluationOutput {
    EvaluationOutput {
        verdict: Verdict::Error.into(),
        error: Some(EvaluationError { code: code.to_owned(), message: message.to_owned(), ..Default::default() }),
        ..Default::default()
    }
}
