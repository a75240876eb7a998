// Rank pages as `manage.py fairque_docs QUESTION` does (django_fairque/management/page_search.py), in the page with the results.
// Sphinx shows them: this replaces only the function of its searchtools.js that finds them.
"use strict";

const MIN_FORM_LETTERS = 4;
const MAX_ENDING_LETTERS = 3;

/** Return the number of a word's list of scores: of the word itself, or of the longest known word with which it begins. */
function listOfWord(word) {
  const { words } = FairqueIndex;
  const shortest = Math.min(word.length, Math.max(MIN_FORM_LETTERS, word.length - MAX_ENDING_LETTERS));
  for (let length = word.length; length >= shortest; length--) {
    const form = word.slice(0, length);
    if (Object.hasOwn(words, form)) return words[form];
  }
  return undefined;
}

/** Return results as Sphinx expects them, the best last. */
function findPages(question) {
  const { parts, scores } = FairqueIndex;
  const ofPart = new Map();
  const ofPage = new Map();
  const lists = new Set((question.toLowerCase().match(/[\p{L}\p{N}]+/gu) || []).map(listOfWord));
  lists.delete(undefined);
  for (const list of lists) {
    const best = new Map();
    for (let i = 0; i < scores[list].length; i += 2) {
      const [number, score] = [scores[list][i], scores[list][i + 1]];
      const page = parts[number][0];
      ofPart.set(number, (ofPart.get(number) || 0) + score);
      best.set(page, Math.max(score, best.get(page) || 0));
    }
    for (const [page, score] of best) ofPage.set(page, (ofPage.get(page) || 0) + score);
  }
  const bestParts = new Map();
  for (const [number, score] of [...ofPart].sort((a, b) => b[1] - a[1])) {
    const [page, anchor, title] = parts[number];
    if (!bestParts.has(page))
      bestParts.set(page, [page, title, anchor && `#${anchor}`, null, score + ofPage.get(page), `${page}.md`, "text"]);
  }
  return [...bestParts.values()].sort((a, b) => a[4] - b[4] || (a[0] < b[0] ? 1 : -1));
}

Search._performSearch = findPages;
