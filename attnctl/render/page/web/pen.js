// One drawing, two papers: the same calls draw on a canvas or write an SVG.

/** A pen for a canvas of `width` × `height` CSS pixels. */
function canvasPen(canvas, width, height, ratio, colours) {
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const c = canvas.getContext("2d");
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, width, height);
  return {
    colours,
    rect(x, y, w, h, fill, alpha = 1) {
      c.globalAlpha = alpha;
      c.fillStyle = fill;
      c.fillRect(x, y, w, h);
      c.globalAlpha = 1;
    },
    frame(x, y, w, h, stroke, thick) {
      c.strokeStyle = stroke;
      c.lineWidth = thick;
      c.strokeRect(x, y, w, h);
    },
    hatch(x, y, w, h) {
      c.save();
      c.beginPath();
      c.rect(x, y, w, h);
      c.clip();
      c.strokeStyle = colours.quiet;
      c.globalAlpha = 0.5;
      c.lineWidth = 1;
      c.beginPath();
      for (let at = x - h; at < x + w; at += 6) {
        c.moveTo(at, y + h);
        c.lineTo(at + h, y);
      }
      c.stroke();
      c.restore();
    },
    cells(picture, from, x, y, w, h) {
      c.imageSmoothingEnabled = w < (from.c1 - from.c0) * 1.0;
      c.imageSmoothingQuality = "high";
      c.drawImage(picture(), from.c0, from.r0, from.c1 - from.c0, from.r1 - from.r0, x, y, w, h);
    },
    text(
      string,
      x,
      y,
      { size = 13, fill = colours.ink, align = "left", base = "middle", turn = 0, bold = false } = {},
    ) {
      c.save();
      c.translate(x, y);
      c.rotate((turn * Math.PI) / 180);
      c.font = `${bold ? "600 " : ""}${size}px ${colours.sans}`;
      c.fillStyle = fill;
      c.textAlign = align;
      c.textBaseline = base === "middle" ? "middle" : "alphabetic";
      c.fillText(string, 0, 0);
      c.restore();
    },
  };
}

/** A pen that writes SVG; `done()` gives the file. */
function svgPen(width, height, colours) {
  const parts = [];
  const f = (x) => Number(x.toFixed(2));
  const escaped = (text) =>
    Array.from(text.toWellFormed ? text.toWellFormed() : text, (c) => {
      const code = c.codePointAt(0);
      if (code < 32 && code !== 9 && code !== 10) return "\ufffd";
      return "<>&\"'".includes(c) || code > 126 ? `&#${code};` : c;
    }).join("");
  const anchor = { left: "start", center: "middle", right: "end" };
  return {
    colours,
    rect(x, y, w, h, fill, alpha = 1) {
      const see = alpha < 1 ? ` fill-opacity="${alpha}"` : "";
      parts.push(`<rect x="${f(x)}" y="${f(y)}" width="${f(w)}" height="${f(h)}" fill="${fill}"${see}/>`);
    },
    frame(x, y, w, h, stroke, thick) {
      parts.push(
        `<rect x="${f(x)}" y="${f(y)}" width="${f(w)}" height="${f(h)}" fill="none" stroke="${stroke}" stroke-width="${thick}"/>`,
      );
    },
    hatch(x, y, w, h) {
      parts.push(`<rect x="${f(x)}" y="${f(y)}" width="${f(w)}" height="${f(h)}" fill="url(#hatch)"/>`);
    },
    cells(picture, from, x, y, w, h, colourOf) {
      const rows = from.r1 - from.r0;
      const cols = from.c1 - from.c0;
      if (rows * cols > 10000) {
        const cut = document.createElement("canvas");
        cut.width = cols;
        cut.height = rows;
        cut.getContext("2d").drawImage(picture(), from.c0, from.r0, cols, rows, 0, 0, cols, rows);
        parts.push(
          `<image x="${f(x)}" y="${f(y)}" width="${f(w)}" height="${f(h)}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${cut.toDataURL()}"/>`,
        );
        return;
      }
      for (let r = 0; r < rows; r++) {
        for (let c = 0; c < cols; c++) {
          const fill = colourOf(from.r0 + r, from.c0 + c);
          if (fill) this.rect(x + (c * w) / cols, y + (r * h) / rows, w / cols, h / rows, css(fill));
        }
      }
    },
    text(
      string,
      x,
      y,
      { size = 13, fill = colours.ink, align = "left", base = "middle", turn = 0, bold = false } = {},
    ) {
      const move = turn ? ` transform="rotate(${turn} ${f(x)} ${f(y)})"` : "";
      const line = base === "middle" ? ' dominant-baseline="central"' : "";
      const heavy = bold ? ' font-weight="600"' : "";
      parts.push(
        `<text x="${f(x)}" y="${f(y)}" font-size="${size}" fill="${fill}" text-anchor="${anchor[align]}"${line}${heavy}${move}>${escaped(string)}</text>`,
      );
    },
    done() {
      return (
        `<svg xmlns="http://www.w3.org/2000/svg" width="${f(width)}" height="${f(height)}" viewBox="0 0 ${f(width)} ${f(height)}" ` +
        `font-family="${escaped(colours.sans)}"><defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse">` +
        `<path d="M-1 7L7 -1" stroke="${colours.quiet}" stroke-width="1" stroke-opacity=".5"/></pattern></defs>` +
        `<rect width="100%" height="100%" fill="${colours.paper}"/>${parts.join("")}</svg>\n`
      );
    },
  };
}

const measurer = document.createElement("canvas").getContext("2d");

function textWidth(text, size, bold = false) {
  measurer.font = `${bold ? "600 " : ""}${size}px ${theme().sans}`;
  return measurer.measureText(text).width;
}

/** `text` cut to `width` pixels, with an ellipsis where something is missing. */
function cut(text, width, size, bold = false) {
  if (textWidth(text, size, bold) <= width) return text;
  const signs = Array.from(text);
  let low = 0;
  let high = signs.length;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (textWidth(`${signs.slice(0, middle).join("")}…`, size, bold) <= width) low = middle;
    else high = middle - 1;
  }
  return `${signs.slice(0, low).join("")}…`;
}
