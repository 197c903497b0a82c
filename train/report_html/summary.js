// The top of the page: the peak as one number, what it is made of, and what to do about it.
const peakBlocks = data.peak.blocks;
const peakOfKind = kind => sum(peakBlocks, block => kindOf(block) === kind ? block[BYTES] : 0);
const share = bytes => data.peak_bytes > 0 ? bytes / data.peak_bytes : 0;
const extraFlopsText = remedy => !isFinite(remedy.extra_flops_share) || remedy.extra_flops_share === null ?
    '–' :
    Math.abs(remedy.extra_flops_share) < 0.0005 ?
    'none' :
    (remedy.extra_flops_share > 0 ? '+' : '−') + percentText(Math.abs(remedy.extra_flops_share));

// Every remedy once, whichever groups it helps, the largest saving first.
function allRemedies() {
  const seen = new Map();
  for (const group of data.groups)
    for (const remedy of group.remedies || [])
      if (!seen.has(remedy.flags || remedy.name)) seen.set(remedy.flags || remedy.name, {...remedy, group});
  return [...seen.values()].sort((a, b) => b.saved_bytes - a.saved_bytes);
}
// Much saved for little work; what makes it another training is proposed last.
const isSameTraining = remedy => remedy.effect !== 'changes results';
const worth = remedy =>
    remedy.saved_bytes * (1 - Math.min(0.9, Math.max(0, remedy.extra_flops_share || 0))) * (isSameTraining(remedy) ? 1 : 0.1);
const bestOf = remedies => (remedies || [])
                               .filter(remedy => remedy.saved_bytes > 0)
                               .sort((a, b) => worth(b) - worth(a) || (a.flags || '').length - (b.flags || '').length)[0];

function sentence() {
  const kind = [...kinds].sort((a, b) => peakOfKind(b) - peakOfKind(a))[0];
  const largest = data.groups.filter(group => group.kind === kind).sort((a, b) => b.bytes - a.bytes)[0] || data.groups[0];
  if (!largest) return null;
  const isAll = largest.bytes > 0.95 * peakOfKind(kind);
  const made = element(
      'p', {class: 'sentence', id: 'sentence'}, `At the peak, ${percentText(share(peakOfKind(kind)))} of the bytes are `,
      isAll ? largest.name : `${kindWord(kind)}, the largest part of them those of ${largest.modules || 'no module'}`, '. ');
  const own = bestOf(largest.remedies), best = own && isSameTraining(own) ? own : bestOf([...allRemedies(), ...(data.combined || [])]);
  if (!best) return made;
  const extra = extraFlopsText(best);
  made.append(
      element('code', {}, best.flags || best.name), isSameTraining(best) ? '' : ' would change results and',
      isSameTraining(best) ? ' would save ' : ' save ', bytesElement(best.saved_bytes),
      extra === '–'                  ? '.' :
          extra === 'none'           ? ' without more FLOPs.' :
          best.extra_flops_share < 0 ? ` and ${percentText(-best.extra_flops_share)} of the FLOPs.` :
                                       ` for ${percentText(best.extra_flops_share)} more FLOPs.`);
  return made;
}

function showSummary() {
  const parts = kinds.map(kind => [kind, peakOfKind(kind)]).filter(([, bytes]) => bytes > 0);
  const figure = (bytes, text, big) => element(
      'div', {class: big ? 'figure big' : 'figure'}, element('b', {title: exactText(bytes)}, bytesText(bytes)), element('span', {}, text));
  const lastAccuracy = data.metrics && data.metrics.test_accuracy && data.metrics.test_accuracy.length ?
      data.metrics.test_accuracy[data.metrics.test_accuracy.length - 1] :
      null;
  page.append(element(
      'section', {id: 'summary', 'aria-label': 'Summary', style: {marginTop: 0}}, element('h1', {}, data.title || 'Memory report'),
      element(
          'div', {class: 'tags'}, element('span', {class: 'tag state'}, data.planned ? 'planned' : 'measured'),
          element('span', {class: 'tag'}, data.precision),
          data.config && data.config.batch !== undefined ? element('span', {class: 'tag'}, `batch ${data.config.batch}`) : null),
      element(
          'div', {class: 'figures'}, figure(data.peak_bytes, data.planned ? 'peak, as planned' : 'peak, as measured', true),
          figure(
              data.reserved_bytes,
              'reserved' +
                  (data.peak_bytes > 0 ? `, ${((data.reserved_bytes / data.peak_bytes - 1) * 100).toFixed(1)}\u00a0% above the peak` : '')),
          element(
              'div', {class: 'figure'}, element('b', {}, countText(peakBlocks.length)),
              element('span', {}, 'tensors alive at the peak' + (data.peak.moment ? `, ${data.peak.moment}` : ''))),
          lastAccuracy === null ?
              null :
              element(
                  'div', {class: 'figure'}, element('b', {}, percentText(lastAccuracy)), element('span', {}, 'test accuracy at the end'))),
      element(
          'div', {class: 'bar', 'aria-hidden': 'true'},
          parts.map(
              ([kind, bytes]) => element(
                  'div', {
                    class: kind,
                    style: {flex: `${bytes} 0 0px`, background: colourVariable(kind), paddingLeft: share(bytes) < 0.06 ? '0' : null},
                    title: `${kindWord(kind)}: ${exactText(bytes)}`
                  },
                  share(bytes) < 0.06 ? '' : percentText(share(bytes))))),
      element(
          'ul', {class: 'legend'},
          parts.map(
              ([kind, bytes]) => element(
                  'li', {}, chip(kind), kindWord(kind), bytesElement(bytes),
                  element('span', {class: 'bytes'}, percentText(share(bytes)))))),
      sentence()));
}

function showRemedies() {
  const single = allRemedies().filter(remedy => remedy.saved_bytes > 0).slice(0, 10);
  const combined = (data.combined || []).filter(remedy => remedy.saved_bytes > 0).slice(0, 4);
  if (!single.length && !combined.length) return;
  const made = section('What would lower the peak', 'each number by planning the run with that change');
  const title = (text, number) => element('span', {class: number ? 'title number' : 'title'}, text);
  const row = remedy =>
      [element(
           'span', {class: 'label'},
           element('span', {}, remedy.name, isSameTraining(remedy) ? null : element('span', {class: 'muted'}, ' (changes results)')),
           remedy.flags ? element('code', {}, remedy.flags) : null),
       element('div', {class: 'track', 'aria-hidden': 'true'}, element('div', {style: {width: share(remedy.peak_bytes) * 100 + '%'}})),
       bytesElement(remedy.peak_bytes, {class: 'number', 'data-label': 'new peak'}),
       bytesElement(remedy.saved_bytes, {class: 'number', 'data-label': 'saves'}),
       element('span', {class: 'number', 'data-label': 'FLOPs'}, extraFlopsText(remedy))];
  made.append(element(
      'div', {class: 'remedies'}, title('one change'), title(`against ${bytesText(data.peak_bytes)} now`), title('new peak', true),
      title('saves', true), title('FLOPs', true), single.map(row),
      combined.length ? [element('span', {class: 'title wide'}, 'several together'), combined.map(row)] : null));
}
