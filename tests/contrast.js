// What a page shows below the contrast that WCAG AA asks for: the element, its ratio and some of its text.
() => {
  const parse = text => {
    const numbers = text.match(/[\d.]+/g).map(Number), scale = text.startsWith('color(') ? 255 : 1;
    return [0, 1, 2].map(i => numbers[i] * scale).concat(numbers.length > 3 ? numbers[3] : 1);
  };
  const lay = (front, back) => [0, 1, 2].map(i => front[i] * front[3] + back[i] * (1 - front[3])).concat(1);
  const luminance = colour => {
    const [r, g, b] = colour.slice(0, 3).map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const isColour = text => text && text !== 'none' && !text.startsWith('url');
  const opacity = element => {
    let product = 1;
    for (let e = element; e; e = e.parentElement) product *= getComputedStyle(e).opacity;
    return product;
  };
  const shapesUnder = (text, box) => {  // what a picture has behind a text, from the top
    const x = box.x + box.width / 2, y = box.y + box.height / 2, svg = text.closest('svg');
    return document.elementsFromPoint(x, y).filter(e => svg.contains(e) && e.matches('rect,circle,ellipse,path,polygon,use') && isColour(getComputedStyle(e).fill))
      .map(e => { const style = getComputedStyle(e), fill = parse(style.fill); fill[3] *= style.fillOpacity * opacity(e); return fill; });
  };
  const background = (element, box) => {
    const layers = element.closest('svg text') ? shapesUnder(element, box) : [];
    for (let e = element; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
    const last = layers.findIndex(layer => layer[3] === 1);
    return layers.slice(0, last < 0 ? layers.length : last + 1).reduceRight((back, layer) => lay(layer, back), [255, 255, 255, 1]);
  };
  const found = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, words = walker.currentNode.data.trim();
    if (!words || !element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    if (element.closest('svg')) element.scrollIntoView({block: 'nearest', inline: 'nearest'});
    const box = element.getBoundingClientRect();
    if (box.width < 2 || box.height < 2 || element.closest('title,desc,style,script')) continue;
    const style = getComputedStyle(element), colour = parse(element.closest('svg text') ? style.fill : style.color);
    colour[3] *= opacity(element);
    const back = background(element, box);
    const [bright, dark] = [luminance(lay(colour, back)), luminance(back)].sort((a, b) => b - a);
    const ratio = (bright + .05) / (dark + .05), size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && +style.fontWeight >= 700);
    const name = `${element.tagName}.${element.getAttribute('class')}`;
    if (ratio < (isLarge ? 3 : 4.5)) found[name] ??= [ratio.toFixed(2), words.slice(0, 40)];
  }
  return found;
}
