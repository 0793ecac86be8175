// A scatter plot on canvas that can be moved and enlarged. A click picks the nearest point.

const RADIUS = 2.6;
export const COLOURS = 10; // --m0 … --m9 of the style sheet

// points: [{id, x, y, colour (number or null)}]. Returns {select(point, others), repaint, zoom, reset}.
export function scatter(canvas, points, onPick, signal) {
  const view = { scale: 1, x: 0, y: 0 }; // what the person did to the plot
  let chosen = null, others = [];
  const bounds = box(points);

  const place = ({ x, y }) => {
    const { clientWidth: width, clientHeight: height } = canvas;
    const fit = 0.92 * Math.min(width / bounds.width, height / bounds.height);
    return [
      width / 2 + view.x + (x - bounds.x) * fit * view.scale,
      height / 2 + view.y - (y - bounds.y) * fit * view.scale,
    ];
  };
  const paint = () => {
    const ratio = devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const styles = getComputedStyle(canvas);
    const colour = (name) => styles.getPropertyValue(name);
    const palette = Array.from({ length: COLOURS }, (_, at) => colour(`--m${at}`));
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.globalAlpha = chosen ? 0.55 : 0.85;
    for (const point of points) {
      const [x, y] = place(point);
      pen.fillStyle = point.colour === null ? colour("--quiet") : palette[point.colour];
      pen.beginPath();
      pen.arc(x, y, RADIUS, 0, 7);
      pen.fill();
    }
    pen.globalAlpha = 1;
    if (!chosen) return;
    const [x, y] = place(chosen);
    pen.strokeStyle = colour("--text");
    for (const other of others) {
      const [to, down] = place(other);
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(to, down);
      pen.stroke();
      ring(pen, to, down, 4.5, colour("--ground"));
    }
    pen.lineWidth = 2.5;
    ring(pen, x, y, 7, colour("--accent"));
  };
  let isDue = false;
  const repaint = () => { // at most once a frame
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => { isDue = false; paint(); });
  };
  const zoom = (factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) => {
    const next = Math.min(200, Math.max(0.5, view.scale * factor)), change = next / view.scale;
    view.x = (x - canvas.clientWidth / 2) * (1 - change) + view.x * change;
    view.y = (y - canvas.clientHeight / 2) * (1 - change) + view.y * change;
    view.scale = next;
    repaint();
  };

  let held = null; // where the pointer went down, and whether it has moved since
  const listen = (target, name, listener, more = {}) => target.addEventListener(name, listener, { signal, ...more });
  listen(canvas, "pointerdown", (event) => {
    held = { x: event.offsetX, y: event.offsetY, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  listen(canvas, "pointermove", (event) => {
    if (!held) return;
    const [dx, dy] = [event.offsetX - held.x, event.offsetY - held.y];
    if (!held.moved && Math.hypot(dx, dy) < 4) return;
    Object.assign(held, { x: event.offsetX, y: event.offsetY, moved: true });
    view.x += dx;
    view.y += dy;
    repaint();
  });
  listen(canvas, "pointercancel", () => { held = null; });
  listen(canvas, "pointerup", (event) => {
    if (held && !held.moved) {
      const found = nearest(points.map(place), event.offsetX, event.offsetY);
      if (found !== null) onPick(points[found].id);
    }
    held = null;
  });
  listen(canvas, "wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
  }, { passive: false });
  const watch = new ResizeObserver(repaint);
  watch.observe(canvas);
  signal.addEventListener("abort", () => watch.disconnect(), { once: true });
  listen(matchMedia("(prefers-color-scheme: dark)"), "change", repaint);
  return {
    repaint, zoom,
    select(point, near) { chosen = point; others = near; repaint(); },
    reset() { Object.assign(view, { scale: 1, x: 0, y: 0 }); repaint(); },
  };
}

function ring(pen, x, y, radius, fill) {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 7);
  pen.fillStyle = fill;
  pen.fill();
  pen.stroke();
}

function nearest(places, x, y) {
  let best = null, least = Infinity;
  places.forEach(([left, top], at) => {
    const distance = (left - x) ** 2 + (top - y) ** 2;
    if (distance < least) [best, least] = [at, distance];
  });
  return best;
}

function box(points) {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const { x, y } of points) {
    [left, right] = [Math.min(left, x), Math.max(right, x)];
    [low, high] = [Math.min(low, y), Math.max(high, y)];
  }
  return { x: (left + right) / 2, y: (low + high) / 2, width: right - left || 1, height: high - low || 1 };
}
