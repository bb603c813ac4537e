/** The phrases that a text holds as whole words, whatever their case. */
export function phrasesIn(text: string, phrases: string[]): string[] {
  const normal = text.normalize('NFKC');
  return phrases.filter((phrase) => {
    const literal = phrase.normalize('NFKC').replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&');
    return new RegExp(`(?<![\\p{L}\\p{N}])${literal}(?![\\p{L}\\p{N}])`, 'iu').test(normal);
  });
}
