// Drawing between clicks. A press and its release are one click: if an element moved or was replaced
// in between, the click would be lost or would hit another row. Draws wait for the release.

let isPressed = false;
const waiting = new Map();

// A message is handled after the click that belongs to the release.
const later = new MessageChannel();
later.port1.onmessage = () => {
  const steps = isPressed ? [] : [...waiting.values()];
  if (!isPressed) waiting.clear();
  for (const step of steps) step();
};

// Run `step`, which draws a part of the page, now or when the pointer is released. A step of the
// same part that still waits is replaced.
export function paint(part, step) {
  if (isPressed) {
    waiting.set(part, step);
    return;
  }
  waiting.delete(part); // It is older than this one.
  step();
}

function release() {
  if (!isPressed) return;
  isPressed = false;
  later.port2.postMessage(null);
}

addEventListener(
  "pointerdown",
  (event) => {
    if (event.isPrimary && event.button === 0) isPressed = true;
  },
  true,
);
// Not every press ends with a pointerup: a drag, a menu or another window can take the pointer.
for (const name of ["pointerup", "pointercancel", "contextmenu"]) {
  addEventListener(name, release, true);
}
addEventListener("blur", release); // Of the window alone: a press takes the focus from an element.
addEventListener(
  "pointermove",
  (event) => {
    if (!event.buttons) release();
  },
  true,
);
