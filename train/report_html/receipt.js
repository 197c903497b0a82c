// The peak's receipt: groups that unfold into tensors and remedies. Its sum is the peak.
// A group is a kind of memory in modules of a pattern, in which a star stands for any number: blocks.*.mlp holds all of
// blocks.3.mlp.fc1. The longest pattern wins; a group without a kind takes what is in no other.
const patternOf = path => path.replace(/(^|\.)[0-9]+(?=\.|$)/g, '$1*');
const belongs = (pattern, path) =>
    path === pattern || (pattern !== '' && path.startsWith(pattern + '.') && path[pattern.length + 1] !== '*');
function sortIntoGroups() {
  const groups = data.groups.map(group => ({...group, blocks: []}));
  const byLength = groups.filter(group => group.kind).sort((a, b) => b.modules.length - a.modules.length);
  let others = groups.find(group => !group.kind);
  for (const block of peakBlocks) {
    const path = patternOf(moduleOf(block));
    let group = byLength.find(candidate => candidate.kind === kindOf(block) && belongs(candidate.modules, path)) || others;
    if (!group) groups.push(group = others = {name: 'in no group', kind: null, modules: '', bytes: 0, count: 0, remedies: [], blocks: []});
    group.blocks.push(block);
  }
  return groups;
}
const receiptGroups = sortIntoGroups();

function showReceipt() {
  const open = new Set();
  let order = {key: 'bytes', up: false}, words = '';
  const keys = {name: group => group.name, count: group => group.shown.length, bytes: group => group.shownBytes};
  const text = block => `${kindOf(block)} ${kindWord(kindOf(block))} ${moduleOf(block)} ${opOf(block)} ${phaseOf(block)}`.toLowerCase();
  const filter = element('input', {
    type: 'search',
    placeholder: 'filter: module, op, kind …',
    'aria-label': 'filter the receipt',
    oninput: () => {
      words = filter.value.trim().toLowerCase();
      fill();
    }
  });
  const made = section('The peak, byte by byte', 'every tensor alive at the peak has an owner', [filter]);
  const headings =
      [['name', 'group', ''], ['count', 'tensors', 'number optional'], ['bytes', 'bytes', 'number']].map(([key, label, classes]) => {
        const cell = element(
            'th', {class: classes, scope: 'col', 'aria-sort': 'none'},
            element(
                'button', {
                  type: 'button',
                  class: 'plain',
                  onclick: () => {
                    order = {key, up: order.key === key ? !order.up : key === 'name'};
                    fill();
                  }
                },
                label));
        cell.dataset.key = key;
        return cell;
      });
  const body = element('tbody', {}), foot = element('tfoot', {});
  made.append(element(
      'table', {class: 'data', id: 'receipt'},
      element(
          'thead', {},
          element(
              'tr', {}, headings.slice(0, 3), element('th', {class: 'number', scope: 'col'}, '%'), element('th', {class: 'optional'}, ''),
              element('th', {class: 'optional', scope: 'col'}, 'best remedy'))),
      body, foot));

  function tensors(group) {
    const most = 60, body = element('tbody', {}),
          more = element(
              'button', {
                type: 'button',
                style: {marginTop: '8px'},
                onclick: () => {
                  put(group.shown);
                  more.remove();
                }
              },
              `all ${countText(group.shown.length)} tensors`);
    const put = blocks => body.replaceChildren(...blocks.map(
        block => element(
            'tr', {}, element('td', {class: 'path'}, moduleOf(block) || '(no module)'), element('td', {}, opOf(block)),
            element('td', {class: 'optional'}, phaseOf(block)), element('td', {class: 'number'}, bytesElement(block[BYTES])),
            element('td', {class: 'number optional'}, countText(block[BIRTH])),
            element('td', {class: 'number optional'}, block[DEATH] < 0 ? 'never' : countText(block[DEATH])))));
    put(group.shown.slice(0, most));
    return [
      element(
          'table', {class: 'data inner'},
          element(
              'thead', {},
              element(
                  'tr', {}, ['module', 'op'].map(label => element('th', {}, label)), element('th', {class: 'optional'}, 'phase'),
                  element('th', {class: 'number'}, 'bytes'),
                  ['born at', 'dies at'].map(label => element('th', {class: 'number optional'}, label)))),
          body),
      group.shown.length > most ? more : null
    ];
  }
  function remedies(group) {
    if (!(group.remedies || []).length)
      return element('p', {class: 'muted', style: {fontSize: '13px'}}, 'No remedy applies to this group.');
    return element(
        'table', {class: 'data inner'},
        element(
            'thead', {},
            element(
                'tr', {}, element('th', {}, 'remedy'),
                ['peak then', 'saves', 'of this group left', 'FLOPs'].map(
                    (label, i) => element('th', {class: i === 2 ? 'number optional' : 'number'}, label)),
                element('th', {class: 'optional'}, ''))),
        element(
            'tbody', {},
            [...group.remedies]
                .sort((a, b) => b.saved_bytes - a.saved_bytes)
                .map(
                    remedy => element(
                        'tr', {}, element('td', {}, remedy.name, ' ', remedy.flags ? element('code', {}, remedy.flags) : null),
                        element('td', {class: 'number'}, bytesElement(remedy.peak_bytes)),
                        element('td', {class: 'number'}, bytesElement(remedy.saved_bytes)),
                        element(
                            'td', {class: 'number optional'},
                            remedy.group_bytes === undefined || remedy.group_bytes === null ? '–' : bytesElement(remedy.group_bytes)),
                        element('td', {class: 'number'}, extraFlopsText(remedy)),
                        element('td', {class: 'optional muted'}, remedy.effect || '')))));
  }
  function fill() {
    headings.forEach(cell => {
      const own = cell.dataset.key === order.key;
      cell.setAttribute('aria-sort', own ? (order.up ? 'ascending' : 'descending') : 'none');
      cell.firstChild.textContent = cell.firstChild.textContent.replace(/ [▲▼]$/, '') + (own ? (order.up ? ' ▲' : ' ▼') : '');
    });
    for (const group of receiptGroups) {
      group.shown = group.blocks.filter(block => !words || text(block).includes(words) || group.name.toLowerCase().includes(words))
                        .sort((a, b) => b[BYTES] - a[BYTES]);
      group.shownBytes = sum(group.shown, block => block[BYTES]);
    }
    const key = keys[order.key],
          groups = receiptGroups.filter(group => group.shown.length)
                       .sort(
                           (a, b) => (order.up ? 1 : -1) *
                               (key(a) < key(b)     ? -1 :
                                    key(a) > key(b) ? 1 :
                                                      0));
    body.replaceChildren(...groups.flatMap(group => {
      const isOpen = open.has(group), best = bestOf(group.remedies);
      const fold = element(
          'button', {
            type: 'button',
            class: 'plain fold',
            'aria-expanded': String(isOpen),
            onclick: () => {
              if (!open.delete(group)) open.add(group);
              const at = [...body.querySelectorAll('.fold')].indexOf(fold);
              fill();
              body.querySelectorAll('.fold')[at].focus();
            }
          },
          element('span', {class: 'arrow', 'aria-hidden': 'true'}, '▸'), chip(group.kind), element('span', {class: 'path'}, group.name));
      const row = element(
          'tr', {class: 'group'}, element('td', {}, fold), element('td', {class: 'number optional'}, countText(group.shown.length)),
          element('td', {class: 'number'}, bytesElement(group.shownBytes)),
          element('td', {class: 'number'}, percentText(share(group.shownBytes))),
          element(
              'td', {class: 'share optional'},
              element('div', {style: {width: share(group.shownBytes) * 100 + '%', background: colourVariable(group.kind)}})),
          element(
              'td', {class: 'optional'},
              best ?
                  [
                    element('code', {}, best.flags || best.name), ` saves ${bytesText(best.saved_bytes)}`,
                    isSameTraining(best) ? null : element('span', {class: 'muted'}, ' (changes results)')
                  ] :
                  element('span', {class: 'muted'}, '–')));
      row.dataset.bytes = group.shownBytes;
      return isOpen ? [row, element('tr', {}, element('td', {class: 'inside', colspan: 6}, remedies(group), tensors(group)))] : [row];
    }));
    const bytes = sum(groups, group => group.shownBytes);
    foot.replaceChildren(element(
        'tr', {}, element('td', {}, words ? 'of these' : 'the peak'),
        element('td', {class: 'number optional'}, countText(sum(groups, group => group.shown.length))),
        element('td', {class: 'number'}, bytesElement(bytes)), element('td', {class: 'number'}, percentText(share(bytes))),
        element('td', {class: 'optional'}), element('td', {class: 'optional'})));
  }
  fill();
  return {
    set filter(value) {
      filter.value = value;
      filter.dispatchEvent(new Event('input'));
    },
    table: made.querySelector('table')
  };
}
