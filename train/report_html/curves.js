// Loss, rate, gradient norm, throughput and test accuracy over the steps: one small chart each.
function curveChart(parent, title, steps, values, options) {
  const points = steps.map((step, i) => [step, values[i]]).filter(([, value]) => value !== null && value !== undefined && isFinite(value));
  if (!points.length) return;
  const format = options.format || numberText, reading = element('span', {}, `last ${format(points[points.length - 1][1])}`),
        usual = reading.textContent;
  const made = element('div', {}, element('h3', {}, title, reading));
  parent.append(made);
  const left = 62, right = 10, top = 8, bottom = 22;
  const first = options.first, last = Math.max(options.last, first + 1);
  let low = Infinity, high = -Infinity, cursor = null;
  for (const [, value] of points) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (options.fromZero) low = Math.min(0, low);
  if (high - low < 1e-12 * Math.max(1, Math.abs(high))) {
    const pad = Math.abs(high) * 0.1 || 1;
    low -= pad;
    high += pad;
  }
  const many = points.length > 60 && options.smooth, smooth = [];
  if (many) {
    const keep = 1 - 1 / Math.max(10, points.length / 40);
    let mean = points[0][1];
    for (const [step, value] of points) {
      mean = keep * mean + (1 - keep) * value;
      smooth.push([step, mean]);
    }
  }
  const drawn = plot(made, 170, `${title} over steps`, (context, width, height) => {
    const x = step => left + (step - first) / (last - first) * (width - left - right),
          y = value => height - bottom - (value - low) / (high - low) * (height - top - bottom);
    context.clearRect(0, 0, width, height);
    const rough = (high - low) / 3, power = 10 ** Math.floor(Math.log10(rough)),
          step = [1, 2, 5, 10].map(m => m * power).find(size => size >= rough);
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) {
      context.fillStyle = colour('--line');
      context.fillRect(left, Math.round(y(value)), width - left - right, 1);
      context.fillStyle = colour('--muted');
      context.fillText(format(Math.abs(value) < step * 1e-9 ? 0 : value), left - 8, y(value));
    }
    const trace = (list, style, wide, alpha) => {
      context.beginPath();
      list.forEach(([s, v]) => context.lineTo(x(s), y(v)));
      context.strokeStyle = style;
      context.lineWidth = wide;
      context.globalAlpha = alpha;
      context.lineJoin = 'round';
      context.stroke();
      context.globalAlpha = 1;
    };
    const ink = colour('--accent');
    trace(points, ink, many ? 1 : 1.8, many ? 0.35 : 1);
    if (many) trace(smooth, ink, 2, 1);
    if (options.dots || points.length === 1)
      for (const [s, v] of points) {
        context.fillStyle = ink;
        context.beginPath();
        context.arc(x(s), y(v), 3.5, 0, 7);
        context.fill();
      }
    context.fillStyle = colour('--muted');
    context.textBaseline = 'alphabetic';
    context.textAlign = 'left';
    context.fillText(countText(first), left, height - 5);
    context.textAlign = 'right';
    context.fillText(countText(last), width - right, height - 5);
    context.textAlign = 'center';
    context.fillText('step', (left + width - right) / 2, height - 5);
    if (cursor) {
      context.fillStyle = colour('--ink');
      context.fillRect(x(cursor[0]) - 0.5, top, 1, height - top - bottom);
      context.beginPath();
      context.arc(x(cursor[0]), y(cursor[1]), 3, 0, 7);
      context.fill();
    }
  });
  const point = at => {
    cursor = at;
    reading.textContent = at ? `step ${countText(at[0])}: ${format(at[1])}` : usual;
    drawn.redraw();
  };
  drawn.canvas.addEventListener('pointermove', event => {
    const step = first + (event.clientX - drawn.canvas.getBoundingClientRect().left - left) / (drawn.width - left - right) * (last - first);
    point(points.reduce((best, one) => Math.abs(one[0] - step) < Math.abs(best[0] - step) ? one : best));
  });
  drawn.canvas.addEventListener('pointerleave', () => point(null));
  drawn.canvas.addEventListener('blur', () => point(null));
  drawn.canvas.addEventListener('keydown', event => {
    const by = event.key === 'ArrowLeft' ? -1 : event.key === 'ArrowRight' ? 1 : 0;
    if (!by) return;
    event.preventDefault();
    point(points[Math.max(0, Math.min(points.length - 1, (cursor ? points.indexOf(cursor) : points.length - 1) + by))]);
  });
}

function showCurves() {
  const metrics = data.metrics;
  if (!metrics || !metrics.step || !metrics.step.length) return;
  const made = section('The training', `${countText(metrics.step[metrics.step.length - 1])} steps`);
  const grid = element('div', {class: 'curves'});
  made.append(grid);
  const tests = metrics.test_step || [];
  const options = {first: Math.min(metrics.step[0], ...tests), last: Math.max(metrics.step[metrics.step.length - 1], ...tests)};
  curveChart(grid, 'loss', metrics.step, metrics.loss || [], {...options, smooth: true});
  if (tests.length) curveChart(grid, 'test accuracy', tests, metrics.test_accuracy || [], {...options, dots: true, format: percentText});
  curveChart(grid, 'learning rate', metrics.step, metrics.lr || [], {...options, fromZero: true});
  curveChart(grid, 'gradient norm', metrics.step, metrics.grad_norm || [], {...options, smooth: true});
  curveChart(grid, 'samples a second', metrics.step, metrics.samples_per_second || [], {...options, fromZero: true, smooth: true});
}
