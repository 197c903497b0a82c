// Memory over the recorded window, stacked by kind; the plan's curve as a line over it. Per pixel column the highest moment is
// drawn, so no peak is lost however far the view is zoomed out.
const memoryChart = {
  byTime: false,
  from: 0,
  to: 1,
  cursor: null,
  drag: null
};

function showMemoryChart() {
  const view = memoryChart;
  if (!curve.ticks.length) return;
  const hasTime = !data.planned && curve.seconds.length === curve.ticks.length && curve.seconds[curve.seconds.length - 1] > 0;
  const start = () => view.byTime ? curve.seconds[0] : curve.ticks[0];
  const end = () => view.byTime ? curve.seconds[curve.seconds.length - 1] : endTick;
  const xs = of => !view.byTime ? of.ticks : of === curve ? curve.seconds : of.ticks.map(secondOf);
  const secondOf = tick => curve.seconds[Math.max(0, pointAt(curve.ticks, tick))];
  const xOf = tick => view.byTime ? secondOf(tick) : tick;
  const left = 74, right = 12, top = 26, bottom = 26;
  const plotTop = Math.max(data.peak.tick >= curve.ticks[0] ? data.peak_bytes : 0, curve.top, planned ? planned.top : 0) * 1.1 || 1;

  const press = (text, label, action) => element('button', {type: 'button', 'aria-label': label, title: label, onclick: action}, text);
  const stretches =
      data.marks.map((mark, i) => ({label: mark.label, from: mark.tick, to: i + 1 < data.marks.length ? data.marks[i + 1].tick : endTick}))
          .filter(stretch => stretch.to > stretch.from && stretch.to > curve.ticks[0]);
  const isStep = stretch => /^(step|window)/.test(stretch.label), steps = stretches.filter(isStep), numSteps = steps.length;
  const choices = [
    {label: 'all of it', from: curve.ticks[0], to: endTick},
    ...(numSteps > 1 && numSteps < stretches.length ? [{label: 'the steps', from: steps[0].from, to: steps[numSteps - 1].to}] : []),
    ...stretches.slice(0, 500)
  ];
  const chooser = element(
      'select', {
        'aria-label': 'part of the run',
        onchange: () => {
          const chosen = choices[chooser.selectedIndex];
          show(Math.max(start(), xOf(chosen.from)), chosen.to >= endTick ? end() : xOf(chosen.to));
        }
      },
      choices.map(stretch => element('option', {}, stretch.label)));
  const timeButton = element(
      'button', {
        type: 'button',
        'aria-pressed': 'false',
        title: 'across: seconds instead of allocations',
        onclick: () => {
          view.byTime = !view.byTime;
          timeButton.setAttribute('aria-pressed', String(view.byTime));
          chooser.dispatchEvent(new Event('change'));
        }
      },
      'by time');
  const made = section(
      'Memory over time',
      (numSteps ? `${countText(numSteps)} ${numSteps === 1 ? 'step' : 'steps'}` : 'all of the run') + ', the highest moment of every pixel',
      [
        chooser, hasTime ? timeButton : null, press('+', 'zoom in', () => zoom(0.5)), press('−', 'zoom out', () => zoom(2)),
        press('reset', 'show all', () => reset())
      ]);

  const drawn = plot(made, 340, 'Memory by kind over time. Arrow keys move the cursor, plus and minus zoom, zero shows all.', draw);
  const canvas = drawn.canvas;
  const tip = element('div', {class: 'tip', hidden: true, role: 'status'});
  drawn.box.append(tip);
  made.append(element(
      'ul', {class: 'legend'},
      kinds.filter((_, k) => curve.rows[k] && curve.rows[k].some(bytes => bytes > 0))
          .map(kind => element('li', {}, chip(kind), kindWord(kind))),
      planned ?
          element(
              'li', {},
              element(
                  'span', {class: 'chip', style: {height: '0', borderTop: '2px dashed currentColor', width: '18px', borderRadius: '0'}}),
              'plan, ',
              element(
                  'span', {id: 'difference', style: {marginLeft: '4px'}},
                  largestDifference() === 0 ? 'equal to the run at every point' :
                                              `differs from the run by at most ${exactText(largestDifference())}`)) :
                                              null));
  made.append(element(
      'p', {class: 'hint'},
      'Drag to zoom, double-click or 0 for all. With the chart focused: wheel or +/− zoom, ← → move the cursor, Shift with ← → moves the view.'));

  const span = () => view.to - view.from;
  const pixelOf = x => left + (x - view.from) / span() * (drawn.width - left - right);
  const valueOf = pixel => view.from + (pixel - left) / (drawn.width - left - right) * span();
  const clampPixel = pixel => Math.max(left, Math.min(drawn.width - right - 0.01, pixel));

  function show(from, to) {
    const least = view.byTime ? (end() - start()) / 1e5 : 8;
    if (to - from < least) {
      const middle = (from + to) / 2;
      from = middle - least / 2;
      to = middle + least / 2;
    }
    const width = Math.min(to - from, end() - start());
    view.from = Math.max(start(), Math.min(from, end() - width));
    view.to = view.from + width;
    view.linked && view.linked();
    drawn.redraw();
    if (view.cursor !== null) moveCursor(clampPixel(pixelOf(view.cursor)));
  }
  function reset() {
    chooser.selectedIndex = 0;
    show(start(), end());
  }
  function zoom(factor, at) {
    const x = at !== undefined                                                     ? at :
        view.cursor !== null && view.cursor >= view.from && view.cursor <= view.to ? view.cursor :
                                                                                     (view.from + view.to) / 2;
    show(x - (x - view.from) * factor, x + (view.to - x) * factor);
  }
  Object.assign(view, {show, reset, zoom, drawn, xOf, end, from: start(), to: end()});
  // Long evaluations would leave little room to the steps, which are what one looks for.
  if (choices.length > 1 && choices[1].label === 'the steps' &&
      sum(steps, step => step.to - step.from) < 0.5 * (endTick - curve.ticks[0])) {
    chooser.selectedIndex = 1;
    view.from = Math.max(start(), xOf(choices[1].from));
    view.to = xOf(choices[1].to);
  }

  function columns(of) {
    const width = Math.max(1, Math.floor(drawn.width - left - right)), x = xs(of), found = new Int32Array(width);
    let i = upperBound(x, view.from) - 1;
    for (let c = 0; c < width; ++c) {
      const until = view.from + span() * (c + 1) / width;
      let best = i;
      while (i + 1 < x.length && x[i + 1] < until) {
        ++i;
        if (best < 0 || of.totals[i] > of.totals[best]) best = i;
      }
      found[c] = best;
    }
    return found;
  }

  // What moves with the pointer is drawn over a picture of the rest, which is made again only when the view changes.
  const still = document.createElement('canvas');
  function draw(context, width, height) {
    const key = [view.from, view.to, view.byTime, canvas.width, canvas.height, colour('--ink'), colour('--card')].join();
    if (key !== view.stillKey) {
      still.width = canvas.width;
      still.height = canvas.height;
      const own = still.getContext('2d');
      own.setTransform(context.getTransform());
      own.font = context.font;
      view.columns = columns(curve);
      drawStill(own, width, height);
      view.stillKey = key;
    }
    context.clearRect(0, 0, width, height);
    context.drawImage(still, 0, 0, width, height);
    if (view.cursor !== null && view.cursor >= view.from && view.cursor <= view.to) {
      context.fillStyle = colour('--ink');
      context.fillRect(pixelOf(view.cursor) - 0.5, top, 1, height - top - bottom);
    }
    if (view.drag) {
      context.fillStyle = colour('--accent');
      context.globalAlpha = 0.25;
      context.fillRect(Math.min(view.drag.from, view.drag.to), top, Math.abs(view.drag.to - view.drag.from), height - top - bottom);
      context.globalAlpha = 1;
    }
  }

  function drawStill(context, width, height) {
    const y = bytes => height - bottom - bytes / plotTop * (height - top - bottom);
    const ink = colour('--ink'), muted = colour('--muted'), line = colour('--line');
    // Lines across at round sizes.
    const unit = kUnits.find(([, size]) => plotTop / 1.1 >= size) || ['B', 1];
    const rough = plotTop / unit[1] / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map(m => m * power).find(size => size >= rough) * unit[1];
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    for (let bytes = 0; bytes <= plotTop; bytes += step) {
      context.fillStyle = line;
      context.fillRect(left, Math.round(y(bytes)), width - left - right, 1);
      context.fillStyle = muted;
      context.fillText(`${Number((bytes / unit[1]).toPrecision(4))} ${unit[0]}`, left - 9, y(bytes));
    }
    // The stack, one polygon a kind.
    const at = view.columns, base = new Float64Array(at.length);
    kinds.forEach((kind, k) => {
      const row = curve.rows[k];
      if (!row) return;
      let some = false;
      const upper = base.map((below, c) => {
        const own = at[c] >= 0 ? row[at[c]] : 0;
        some = some || own > 0;
        return below + own;
      });
      if (some) {
        context.beginPath();
        context.moveTo(left, y(upper[0]));
        for (let c = 0; c < at.length; ++c) {
          context.lineTo(left + c, y(upper[c]));
          context.lineTo(left + c + 1, y(upper[c]));
        }
        for (let c = at.length - 1; c >= 0; --c) {
          context.lineTo(left + c + 1, y(base[c]));
          context.lineTo(left + c, y(base[c]));
        }
        context.closePath();
        context.fillStyle = kindColour(kind);
        context.fill();
      }
      base.set(upper);
    });
    if (planned) {
      const planAt = columns(planned);
      const trace = () => {
        context.beginPath();
        planAt.forEach((i, c) => {
          if (i >= 0) {
            context.lineTo(left + c, y(planned.totals[i]));
            context.lineTo(left + c + 1, y(planned.totals[i]));
          }
        });
        context.stroke();
      };
      context.strokeStyle = colour('--card');
      context.lineWidth = 3.5;
      context.setLineDash([]);
      trace();
      context.strokeStyle = ink;
      context.lineWidth = 1.6;
      context.setLineDash([6, 4]);
      trace();
      context.setLineDash([]);
    }
    drawMarks(context, width, height, ink, muted);
    // The peak, when it is in sight.
    const peakX = xOf(data.peak.tick);
    if (data.peak.tick >= curve.ticks[0] && peakX >= view.from && peakX <= view.to) {
      const px = pixelOf(peakX), py = y(data.peak_bytes), text = 'peak ' + bytesText(data.peak_bytes);
      context.fillStyle = ink;
      context.beginPath();
      context.moveTo(px, py - 1);
      context.lineTo(px - 5, py - 9);
      context.lineTo(px + 5, py - 9);
      context.fill();
      context.font = '600 ' + context.font;
      const wide = context.measureText(text).width;
      context.textAlign = px + 12 + wide < width - right ? 'left' : 'right';
      context.fillText(text, px + (context.textAlign === 'left' ? 10 : -10), py - 9);
      context.font = context.font.replace(/^600 /, '');
    }
    // Below: where the view begins and ends.
    context.fillStyle = muted;
    context.textBaseline = 'alphabetic';
    const name = x => view.byTime ? secondsText(x) : countText(Math.round(x));
    context.textAlign = 'left';
    context.fillText(name(view.from), left, height - 8);
    context.textAlign = 'right';
    context.fillText(name(view.to), width - right, height - 8);
    context.textAlign = 'center';
    context.fillText(view.byTime ? 'time' : 'allocations and releases', left + (width - left - right) / 2, height - 8);
  }

  function drawMarks(context, width, height, ink, muted) {
    let free = left - 20, last = -10;
    context.textBaseline = 'alphabetic';
    context.textAlign = 'left';
    // What the view begins in the middle of is named at its left edge.
    const before = data.marks.filter(mark => mark.tick >= curve.ticks[0] && xOf(mark.tick) < view.from).pop();
    const inSight = data.marks.filter(mark => mark.tick >= curve.ticks[0] && xOf(mark.tick) >= view.from && xOf(mark.tick) <= view.to);
    if (before && (!inSight.length || pixelOf(xOf(inSight[0].tick)) - left > context.measureText('… ' + before.label).width + 12)) {
      context.fillStyle = muted;
      context.fillText('… ' + before.label, left, top - 11);
      free = left + context.measureText('… ' + before.label).width + 12;
    }
    for (const mark of inSight) {
      const x = xOf(mark.tick);
      const px = Math.round(pixelOf(x));
      if (px - last >= 3) {
        context.fillStyle = ink;
        context.globalAlpha = 0.35;
        context.fillRect(px, top - 6, 1, height - top - bottom + 6);
        context.globalAlpha = 1;
        last = px;
      }
      const wide = context.measureText(mark.label).width;
      const at = Math.min(px, width - wide);
      if (at < free) continue;
      context.fillStyle = muted;
      context.fillText(mark.label, at, top - 11);
      free = at + wide + 12;
    }
  }

  function moveCursor(pixel) {
    const wanted = valueOf(clampPixel(pixel)), column = Math.floor(clampPixel(pixel) - left);
    // What is drawn at this pixel is its highest moment: the cursor stands there.
    const i = (view.columns || columns(curve))[Math.max(0, column)];
    if (i === undefined || i < 0) return;
    view.cursor = wanted;
    const tick = curve.ticks[i], marks = data.marks.filter(mark => mark.tick <= tick), owners = ownersAt(tick, 6);
    const rows = kinds.map((kind, k) => [kind, curve.rows[k] ? curve.rows[k][i] : 0]).filter(([, bytes]) => bytes > 0).reverse();
    const planIndex = planned ? pointAt(planned.ticks, tick) : -1;
    tip.replaceChildren(
        element(
            'div', {}, element('b', {}, bytesText(curve.totals[i])), ' ',
            element(
                'span', {class: 'muted'},
                [
                  marks.length ? marks[marks.length - 1].label : null, `at ${countText(tick)}`,
                  hasTime ? secondsText(curve.seconds[i]) : null,
                  planIndex >= 0 ?
                      `plan ${planned.totals[planIndex] === curve.totals[i] ? 'the same' : bytesText(planned.totals[planIndex])}` :
                      null
                ].filter(Boolean)
                    .join(', '))),
        element(
            'table', {},
            rows.map(
                ([kind, bytes]) => element(
                    'tr', {}, element('td', {}, chip(kind), kindWord(kind)), element('td', {class: 'number'}, bytesText(bytes)),
                    element('td', {class: 'number muted'}, percentText(bytes / curve.totals[i]))))),
        element(
            'table', {class: 'owners'},
            owners.map(
                block => element(
                    'tr', {}, element('td', {}, chip(kindOf(block)), moduleOf(block) || '(no module)'),
                    element('td', {class: 'muted'}, [opOf(block), phaseOf(block)].filter(Boolean).join(', ')),
                    element('td', {class: 'number'}, bytesText(block[BYTES]))))));
    placeTip(tip, drawn.box, pixelOf(view.cursor), top + 30);
    drawn.redraw();
  }
  function dropCursor() {
    view.cursor = null;
    tip.hidden = true;
    drawn.redraw();
  }

  const pixelOfEvent = event => event.clientX - canvas.getBoundingClientRect().left;
  canvas.addEventListener('pointerdown', event => {
    canvas.focus({preventScroll: true});
    if (event.pointerType === 'touch') {
      moveCursor(pixelOfEvent(event));
      return;
    }
    try {
      canvas.setPointerCapture(event.pointerId);
    } catch (_) { /* events made by the self-check have no pointer */
    }
    view.drag = {from: clampPixel(pixelOfEvent(event)), to: clampPixel(pixelOfEvent(event))};
  });
  canvas.addEventListener('pointermove', event => {
    if (view.drag) view.drag.to = clampPixel(pixelOfEvent(event));
    moveCursor(pixelOfEvent(event));
  });
  canvas.addEventListener('pointerup', () => {
    const drag = view.drag;
    view.drag = null;
    if (drag && Math.abs(drag.to - drag.from) > 5) show(valueOf(Math.min(drag.from, drag.to)), valueOf(Math.max(drag.from, drag.to)));
    drawn.redraw();
  });
  canvas.addEventListener('pointerleave', () => {
    if (!view.drag) dropCursor();
  });
  canvas.addEventListener('blur', dropCursor);
  canvas.addEventListener('dblclick', reset);
  canvas.addEventListener('wheel', event => {
    if (document.activeElement !== canvas && !event.ctrlKey) return;  // else the page scrolls as it should
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY))
      show(view.from + span() * event.deltaX / 800, view.to + span() * event.deltaX / 800);
    else
      zoom(Math.exp(event.deltaY / 400), valueOf(clampPixel(pixelOfEvent(event))));
  }, {passive: false});
  canvas.addEventListener('keydown', event => {
    const sideways = event.key === 'ArrowLeft' ? -1 : event.key === 'ArrowRight' ? 1 : 0;
    if (sideways && event.shiftKey)
      show(view.from + sideways * span() / 8, view.to + sideways * span() / 8);
    else if (sideways)
      moveCursor((view.cursor === null ? drawn.width / 2 : pixelOf(view.cursor)) + sideways * 2);
    else if (event.key === '+' || event.key === '=')
      zoom(0.5);
    else if (event.key === '-')
      zoom(2);
    else if (event.key === '0' || event.key === 'Home')
      reset();
    else if (event.key === 'Escape')
      dropCursor();
    else
      return;
    event.preventDefault();
  });
}
