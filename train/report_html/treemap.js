// The peak as areas: kinds, in them modules, in them tensors. A click goes one level in.
function peakTree() {
  const root = {name: 'peak', bytes: 0, count: 0, kind: '', children: new Map()};
  for (const block of peakBlocks) {
    const kind = kindOf(block), parts = moduleOf(block).split('.');
    // blocks.3 is one thing, what lies in it another.
    const first = parts.length > 1 && /^[0-9]+$/.test(parts[1]) ? parts.slice(0, 2).join('.') : parts[0];
    const rest = parts.join('.').slice(first.length + 1);
    const path = [kindWord(kind), first || '(no module)', ...(rest ? [rest] : []), `${opOf(block) || 'tensor'} #${block[ID]}`];
    let node = root;
    node.bytes += block[BYTES];
    ++node.count;
    for (const name of path) {
      if (!node.children.has(name)) node.children.set(name, {name, bytes: 0, count: 0, kind, parent: node, children: new Map()});
      node = node.children.get(name);
      node.bytes += block[BYTES];
      ++node.count;
    }
    node.block = block;
  }
  return root;
}
// Squarified (Bruls, Huizing, van Wijk 2000): rows along the shorter side, as long as that makes them squarer.
function squarify(nodes, x, y, width, height) {
  const placed = [], all = nodes.filter(node => node.bytes > 0).sort((a, b) => b.bytes - a.bytes);
  let left = sum(all, node => node.bytes);
  const worst = (row, rowBytes, side, scale) => {
    const thick = rowBytes * scale / side;
    return row.reduce((most, node) => {
      const long = node.bytes * scale / thick;
      return Math.max(most, long / thick, thick / long);
    }, 0);
  };
  for (let i = 0; i < all.length;) {
    const side = Math.min(width, height), scale = width * height / left;
    if (!(side > 0) || !(left > 0)) break;
    let row = [all[i]], rowBytes = all[i].bytes, j = i + 1;
    while (j < all.length && worst([...row, all[j]], rowBytes + all[j].bytes, side, scale) <= worst(row, rowBytes, side, scale)) {
      row.push(all[j]);
      rowBytes += all[j].bytes;
      ++j;
    }
    const thick = rowBytes * scale / side;
    let along = 0;
    for (const node of row) {
      const long = node.bytes * scale / thick;
      placed.push(
          width >= height ? {node, x, y: y + along, width: thick, height: long} : {node, x: x + along, y, width: long, height: thick});
      along += long;
    }
    if (width >= height) {
      x += thick;
      width -= thick;
    } else {
      y += thick;
      height -= thick;
    }
    left -= rowBytes;
    i = j;
  }
  return placed;
}

function showTreemap() {
  const root = peakTree();
  let at = root;
  const made = section('The peak as areas', 'kinds, modules in them, tensors in these');
  const crumbs = element('nav', {class: 'crumbs', 'aria-label': 'where in the peak'});
  made.querySelector('.head').append(element('div', {class: 'controls'}, crumbs));
  const box = element('div', {class: 'treemap', id: 'treemap'}), tip = element('div', {class: 'tip', hidden: true}),
        frame = element('div', {class: 'plot'}, box, tip);
  made.append(frame, element('p', {class: 'hint'}, 'Click an area, or press Enter on it, to look inside; Escape goes back.'));

  // The number of a block where its whole name has no room.
  const label = (node, width) => width > 120 ? `${node.name} ${bytesText(node.bytes)}` :
      width < 7 * node.name.length && !node.block ? node.name.split('.').pop() :
                                                    node.name;
  const go = node => {
    at = node;
    tip.hidden = true;
    draw();
  };
  // In shares of the box, so that paper of another width shows all of it.
  const across = x => x / box.clientWidth * 100 + '%', down = y => y / box.clientHeight * 100 + '%';
  function cell(place, outer) {
    const node = place.node, target = node.children.size ? node : node.parent;
    const made = element(
        'button', {
          type: 'button',
          class: (outer ? 'outer ' : '') + node.kind,
          tabindex: outer ? 0 : -1,
          'aria-label': `${node.name}, ${bytesText(node.bytes)}, ${percentText(share(node.bytes))} of the peak`,
          style: {
            left: across(place.x),
            top: down(place.y),
            width: `calc(${across(place.width)} - 1px)`,
            height: `calc(${down(place.height)} - 1px)`,
            background: colourVariable(node.kind)
          },
          onclick: () => {
            if (target !== at) go(target);
            if (box.firstChild) box.firstChild.focus({preventScroll: true});
          },
          onpointermove: event => hover(event, node),
          onpointerleave: () => {
            tip.hidden = true;
          }
        },
        place.width > 20 && place.height > 15 ? element('span', {}, label(node, place.width)) : null);
    return made;
  }
  function hover(event, node) {
    const path = [];
    for (let up = node; up.parent; up = up.parent) path.unshift(up.name);
    const around = frame.getBoundingClientRect();
    tip.replaceChildren(
        element('b', {}, bytesText(node.bytes)),
        element('span', {class: 'muted'}, ` ${percentText(share(node.bytes))} of the peak, ${exactText(node.bytes)}`),
        element('div', {}, chip(node.kind), path.join(' › ')),
        node.block ? element('div', {class: 'muted'}, `${phaseOf(node.block)}, ${lifetimeText(node.block)}`) :
                     element('div', {class: 'muted'}, `${countText(node.count)} tensors`));
    placeTip(tip, frame, event.clientX - around.left, event.clientY - around.top);
  }
  function draw() {
    const path = [];
    for (let up = at; up; up = up.parent) path.unshift(up);
    crumbs.replaceChildren(
        ...path
            .flatMap(
                (node, i) =>
                    [i ? '›' : null,
                     node === at ?
                         element('span', {'aria-current': 'true'}, node.name, ' ', bytesElement(node.bytes, {class: 'bytes muted'})) :
                         element('button', {type: 'button', class: 'plain', onclick: () => go(node)}, node.name)])
            .filter(Boolean));
    const cells = [];
    for (const place of squarify([...at.children.values()], 0, 0, box.clientWidth, box.clientHeight)) {
      cells.push(cell(place, true));
      const head = place.height > 44 && place.width > 40 ? 19 : 2;
      if (!place.node.children.size || place.width < 12 || place.height < 12) continue;
      for (const inner of squarify(
               [...place.node.children.values()], place.x + 2, place.y + head, place.width - 5, place.height - head - 3))
        if (inner.width >= 2 && inner.height >= 2) cells.push(cell(inner, false));
    }
    box.replaceChildren(...cells);
  }
  box.addEventListener('keydown', event => {
    if (event.key === 'Escape' && at.parent) {
      go(at.parent);
      if (box.firstChild) box.firstChild.focus();
    }
  });
  new ResizeObserver(draw).observe(box);
  draw();
  return {root, box, go, redraw: draw};
}
