// SPDX-License-Identifier: Apache-2.0
// A map in 3D: points, coloured by the number of images that see them, cameras, and a grid in an arbitrary unit.
import * as THREE from "./vendor/three-0.185.1/three.module.min.js";

const POINT_BYTES = 16;
const MOST_POINTS = 400000;
const STEP = Math.PI / 24;
const RAMP = [0x4a6fa5, 0x4fb3a5, 0xf6d860].map((colour) => new THREE.Color(colour));
const CAMERA = 0xe8825d;
const GRID = 0x3a4048;
const BACKGROUND = 0x14171c;

const canvas = document.getElementById("map");
const state = document.getElementById("map-state");

function median(values) {
  const sorted = Float64Array.from(values).sort();
  return sorted.length ? sorted[sorted.length >> 1] : 0;
}

function share(values, part) {
  const sorted = Float64Array.from(values).sort();
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] : 0;
}

function colourOf(part) {
  const at = Math.min(Math.max(part, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  return RAMP[low].clone().lerp(RAMP[low + 1], at - low);
}

// x, y, z float32, images uint16, error uint16, little-endian; of very many points every n-th
function readPoints(buffer) {
  const count = Math.floor(buffer.byteLength / POINT_BYTES);
  const step = Math.max(1, Math.ceil(count / MOST_POINTS));
  if (step > 1) document.getElementById("map-share").textContent = `One point of ${step} is drawn.`;
  const view = new DataView(buffer);
  const points = [];
  for (let i = 0; i < count; i += step) {
    const at = i * POINT_BYTES;
    const position = new THREE.Vector3(
      view.getFloat32(at, true), view.getFloat32(at + 4, true), view.getFloat32(at + 8, true));
    points.push({ position, images: view.getUint16(at + 12, true) });
  }
  return points;
}

// Up in the world: cameras are held upright, and their y axis points down; without cameras the y axis of the world does.
function upOf(cameras) {
  const up = new THREE.Vector3();
  for (const { rotation } of cameras) up.sub(new THREE.Vector3(...rotation[1]));
  return up.length() > 0.1 ? up.normalize() : new THREE.Vector3(0, -1, 0);
}

function pointCloud(points, most) {
  const positions = new Float32Array(3 * points.length);
  const colours = new Float32Array(3 * points.length);
  points.forEach(({ position, images }, i) => {
    position.toArray(positions, 3 * i);
    colourOf((images - 2) / Math.max(most - 2, 1)).toArray(colours, 3 * i);
  });
  const geometry = new THREE.BufferGeometry();
  geometry.setAttribute("position", new THREE.BufferAttribute(positions, 3));
  geometry.setAttribute("color", new THREE.BufferAttribute(colours, 3));
  const pixels = points.length > 50000 ? 2 : points.length > 5000 ? 2.6 : 3.6;
  const material = new THREE.PointsMaterial({
    size: pixels * devicePixelRatio, sizeAttenuation: false, vertexColors: true });
  material.onBeforeCompile = (shader) => {
    const round = "if (length(gl_PointCoord - 0.5) > 0.5) discard;\n";
    shader.fragmentShader = shader.fragmentShader.replace("#include <color_fragment>", `${round}#include <color_fragment>`);
  };
  return new THREE.Points(geometry, material);
}

// A pyramid for each camera; lenses are not told here, so all have the same shape.
function frusta(cameras, depth) {
  const ends = [];
  for (const { rotation, center } of cameras) {
    const [right, down, forward] = rotation.map((row) => new THREE.Vector3(...row));
    const eye = new THREE.Vector3(...center);
    const corners = [[-1, -1], [1, -1], [1, 1], [-1, 1]].map(([x, y]) =>
      eye.clone().addScaledVector(right, 0.55 * x * depth).addScaledVector(down, 0.4 * y * depth)
        .addScaledVector(forward, depth));
    corners.forEach((corner, i) => ends.push(eye, corner, corner, corners[(i + 1) % 4]));
  }
  const geometry = new THREE.BufferGeometry().setFromPoints(ends);
  return new THREE.LineSegments(geometry, new THREE.LineBasicMaterial({ color: CAMERA }));
}

async function load(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`the server answers ${response.status}`);
  return response;
}

async function build() {
  const points = readPoints(await (await load(canvas.dataset.points)).arrayBuffer());
  const cameras = canvas.dataset.cameras
    ? Object.values((await (await load(canvas.dataset.cameras)).json()).cameras) : [];
  const most = Math.max(3, Math.round(share(points.map((point) => point.images), 0.99)));
  document.getElementById("map-most").textContent = `${most} or more`;

  const turn = new THREE.Quaternion().setFromUnitVectors(upOf(cameras), new THREE.Vector3(0, 1, 0));
  for (const point of points) point.position.applyQuaternion(turn);
  for (const camera of cameras) {
    camera.center = new THREE.Vector3(...camera.center).applyQuaternion(turn).toArray();
    camera.rotation = camera.rotation.map((row) => new THREE.Vector3(...row).applyQuaternion(turn).toArray());
  }
  const middle = new THREE.Vector3(...["x", "y", "z"].map((axis) => median(points.map((point) => point.position[axis]))));
  const reach = Math.max(share(points.map((point) => point.position.distanceTo(middle)), 0.9), 1e-6);
  const scene = new THREE.Scene();
  scene.background = new THREE.Color(BACKGROUND);
  scene.add(pointCloud(points, most));
  if (cameras.length) scene.add(frusta(cameras, 0.16 * reach));
  const cell = 10 ** Math.floor(Math.log10(reach));
  const cells = 2 * Math.ceil((2.2 * reach) / cell);
  const grid = new THREE.GridHelper(cells * cell, cells, GRID, GRID);
  grid.position.set(middle.x, share(points.map((point) => point.position.y), 0.02), middle.z);
  scene.add(grid);

  // The first look is along the cameras, a little from above and from the side.
  const look = new THREE.Vector3();
  for (const { rotation } of cameras) look.add(new THREE.Vector3(...rotation[2]));
  if (look.length() < 0.1) look.set(0, 0, 1).applyQuaternion(turn);
  const start = { turn: Math.atan2(-look.x, -look.z) + 0.5, tilt: 0.35, distance: 3.1 * reach };
  const people = new THREE.Vector3();
  for (const { center } of cameras) people.addScaledVector(new THREE.Vector3(...center), 1 / cameras.length);
  if (cameras.length && people.distanceTo(middle) < 8 * reach) {
    start.distance = Math.max(start.distance, 2.1 * people.distanceTo(middle));
    middle.lerp(people, 0.3); // both are in the picture
  }
  return { scene, middle, reach, start, count: points.length, cameras: cameras.length };
}

function run({ scene, middle, reach, start, count, cameras }) {
  let renderer;
  try {
    renderer = new THREE.WebGLRenderer({ canvas, antialias: true, preserveDrawingBuffer: false });
  } catch {
    state.textContent = `This browser cannot draw in 3D: it has no WebGL. The map has ${count} points.`;
    return;
  }
  const view = { ...start };
  const eye = new THREE.PerspectiveCamera(45, 1, reach / 100, 100 * reach);
  let isDue = false;

  function draw() {
    isDue = false;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!width || !height) return;
    renderer.setPixelRatio(Math.min(devicePixelRatio, 2));
    renderer.setSize(width, height, false);
    eye.aspect = width / height;
    const distance = view.distance * Math.max(1, 1.15 / eye.aspect);
    eye.position.setFromSphericalCoords(distance, Math.PI / 2 - view.tilt, view.turn).add(middle);
    eye.lookAt(middle);
    eye.updateProjectionMatrix();
    renderer.render(scene, eye);
    canvas.dataset.drawn = String(Number(canvas.dataset.drawn ?? 0) + 1);
  }
  function change() {
    view.tilt = Math.min(Math.max(view.tilt, -1.5), 1.5);
    view.distance = Math.min(Math.max(view.distance, 0.05 * reach), 40 * reach);
    if (!isDue) requestAnimationFrame(draw);
    isDue = true;
  }
  const moves = {
    left: () => { view.turn -= STEP; }, right: () => { view.turn += STEP; },
    up: () => { view.tilt += STEP; }, down: () => { view.tilt -= STEP; },
    in: () => { view.distance /= 1.15; }, out: () => { view.distance *= 1.15; },
    reset: () => { Object.assign(view, start); },
  };
  const keys = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down",
    "+": "in", "=": "in", "-": "out", "0": "reset" };
  canvas.addEventListener("keydown", (event) => {
    const move = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
    if (!move) return;
    event.preventDefault();
    moves[move]();
    change();
  });
  for (const button of document.querySelectorAll("[data-turn]"))
    button.addEventListener("click", () => { moves[button.dataset.turn](); change(); });

  // One finger or the mouse turns, two fingers zoom. The wheel zooms once the map has the focus, and scrolls before.
  const fingers = new Map();
  const spread = () => {
    const [a, b] = [...fingers.values()];
    return b ? Math.hypot(a.x - b.x, a.y - b.y) : 0;
  };
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const old = spread();
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (fingers.size > 1) {
      if (old && spread()) view.distance *= old / spread();
    } else {
      view.turn -= (event.clientX - before.x) * 0.008;
      view.tilt += (event.clientY - before.y) * 0.008;
    }
    change();
  });
  for (const kind of ["pointerup", "pointercancel"])
    canvas.addEventListener(kind, (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas) return;
    event.preventDefault();
    view.distance *= Math.exp(event.deltaY * 0.001);
    change();
  }, { passive: false });
  new ResizeObserver(change).observe(canvas);
  state.textContent = "";
  canvas.setAttribute("aria-label",
    `A map of ${count} points and ${cameras} cameras in 3D. Arrow keys turn it, plus and minus zoom, 0 resets.`);
  draw();
}

try {
  run(await build());
} catch (error) {
  state.textContent = `The map cannot be shown: ${error.message}.`;
}
