// The order of the page. A part that fails says so in its place; the others are shown all the same.
function shown(what, show) {
  try {
    return show();
  } catch (error) {
    problems.push(`${what}: ${error.message}`);
    page.append(element('section', {class: 'problem'}, `${what} cannot be shown: ${error.message}`));
    return null;
  }
}
function showConfiguration() {
  const entries = Object.entries(data.config || {});
  if (!entries.length) return;
  const made = element(
      'section', {},
      element(
          'details', {}, element('summary', {}, 'Configuration'),
          element(
              'div', {class: 'config'},
              entries.map(
                  ([key, value]) => element(
                      'div', {}, element('span', {class: 'muted'}, key),
                      element('span', {}, typeof value === 'string' ? value : JSON.stringify(value)))))));
  page.append(made);
}
function showProblems() {
  const held = sum(peakBlocks, block => block[BYTES]);
  if (held !== data.peak_bytes)
    page.append(element(
        'section', {class: 'problem'},
        `The tensors listed for the peak hold ${exactText(held)}, the peak is ${exactText(data.peak_bytes)}: this file is incomplete.`));
}

const parts = {};
shown('The summary', showSummary);
shown('The check of sums', showProblems);
shown('The list of remedies', showRemedies);
shown('The memory chart', showMemoryChart);
shown('The lifetimes', showLifetimes);
parts.treemap = shown('The treemap', showTreemap);
parts.receipt = shown('The receipt', showReceipt);
shown('The training curves', showCurves);
shown('The configuration', showConfiguration);
page.append(element(
    'footer', {},
    'Made by Refrain. This file is complete in itself and loads nothing. Bytes are those asked for; 1 GiB is 1,073,741,824 bytes; point at a number for the exact one.'));
if (location.hash === '#selftest')
  selfTest(parts).catch(error => {
    page.append(element('pre', {id: 'selftest'}, `FAILED the self-check itself: ${error.message}`));
    document.title = 'selftest FAILED';
  });
