// a token of the answer, or a part in the table or the prompt, chooses that part everywhere
const choose = at => {
  for (const element of document.querySelectorAll('[data-part]')) element.classList.toggle('chosen', element.dataset.part === at)
}
for (const element of document.querySelectorAll('[data-first]')) {
  for (const type of ['mouseenter', 'focus', 'click']) element.addEventListener(type, () => choose(element.dataset.first))
}
for (const element of document.querySelectorAll('[data-part]')) {
  element.addEventListener('mouseenter', () => choose(element.dataset.part))
}
// widths and shades are data: the policy of the page allows no style but its own
for (const bar of document.querySelectorAll('[data-width]')) bar.style.width = `${bar.dataset.width}rem`
for (const mark of document.querySelectorAll('[data-shade]')) {
  const [side, strength] = mark.dataset.shade.split(',')
  mark.style.background = `rgba(var(--${side}), ${strength})`
}
