// What a page shows below the contrast that WCAG AA asks for: the element, its ratio and some of its text.
() => {
  const parse = c => { const m = c.match(/[\d.]+/g).map(Number); if (c.startsWith('color(srgb')) return [m[0]*255,m[1]*255,m[2]*255,m.length>3?m[3]:1]; return m.length > 3 ? m : [...m, 1]; };
  const over = (a, b) => [0,1,2].map(i => a[i]*a[3] + b[i]*(1-a[3])).concat(1);
  const lum = c => { const f = [0,1,2].map(i => { const v = c[i]/255; return v <= .03928 ? v/12.92 : ((v+.055)/1.055)**2.4; }); return .2126*f[0]+.7152*f[1]+.0722*f[2]; };
  const found = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.checkVisibility({opacityProperty: true, visibilityProperty: true}) || e.closest('math,svg')) continue;
    const box = e.getBoundingClientRect(); if (box.width < 2 || box.height < 2) continue;
    const style = getComputedStyle(e); let layers = [], n = e;
    while (n) { const b = parse(getComputedStyle(n).backgroundColor); if (b[3] > 0) { layers.push(b); if (b[3] === 1) break; } n = n.parentElement; }
    let back = [255,255,255,1]; for (const l of layers.reverse()) back = over(l, back);
    const front = over(parse(style.color), back);
    const [a, b] = [lum(front), lum(back)].sort((x, y) => y - x), ratio = (a+.05)/(b+.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && +style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) { const k = e.tagName + '.' + e.className; found[k] = found[k] || [ratio.toFixed(2), walker.currentNode.data.trim().slice(0, 40)]; }
  }
  return found;
}
