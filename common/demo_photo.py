"""Photographs of the demo faces: pose, expression, light, occlusion, camera. One call, one JPEG."""
import types

import cv2
import numpy as np

from common.demo_shapes import flat, oval, place, smooth

SIZE = 112
OVERSAMPLING = 2      # shapes are painted this much larger, then averaged down
SUBPIXEL_BITS = 4     # fixed point of OpenCV's drawing coordinates
UNIT = 40.0           # pixels of the picture per unit of head coordinates
NOISE = np.random.RandomState(7).normal(0, 1, (256, 256, 3)).astype(np.float32)  # cut at random places
GRID = np.stack(np.meshgrid(np.linspace(-1.4, 1.4, 28), np.linspace(-1.4, 1.4, 28)))  # (2, 28, 28): x, y
OCCLUSIONS = ('none',) * 24 + ('patch', 'patch', 'hand', 'scarf', 'cap', 'bar')


def draw_expression(rng, traits):
    """What the face does in one image. smile, frown, gaze in [-1, 1]; open: share of the widest."""
    has_glasses = traits.glasses != 'none'
    return types.SimpleNamespace(
        smile=rng.uniform(-0.6, 1), mouth_open=max(0.0, rng.uniform(-0.8, 1)), eye_open=rng.choice(
            [rng.uniform(0.7, 1.15), rng.uniform(0.15, 0.7)], p=[0.85, 0.15]),
        gaze_x=rng.uniform(-1, 1), gaze_y=rng.uniform(-1, 1), brow_lift=rng.uniform(-0.7, 1),
        frown=rng.uniform(-0.6, 1), clothes=rng.uniform(20, 230, 3),
        wears_glasses=has_glasses and rng.uniform() < 0.85)


def take_photo(face, rng):
    """One image of a person (demo_faces.Face) as JPEG bytes, 112x112; what varies is drawn from rng (RandomState)."""
    shapes = face.shapes(draw_expression(rng, face.traits))
    pose, shift = draw_pose(rng)
    canvas = _background(rng)
    _paint(canvas, shapes + _occlusion(rng), pose, shift)
    image = cv2.resize(canvas, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
    image = _camera(_light(image.astype(np.float32), rng), rng)
    options = [cv2.IMWRITE_JPEG_QUALITY, int(rng.randint(55, 96))]
    return cv2.imencode('.jpg', cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)[1].tobytes()


def draw_pose(rng):
    """-> (matrix (2, 3) head coordinates -> pixels, shift (2,) in pixels): yaw, pitch, roll, scale, place."""
    yaw, pitch, roll = np.clip(rng.normal(0, [0.18, 0.09, 0.09]), -0.45, 0.45)
    turn = np.array([[np.cos(yaw), 0, np.sin(yaw)], [0, 1, 0], [-np.sin(yaw), 0, np.cos(yaw)]])
    nod = np.array([[1, 0, 0], [0, np.cos(pitch), np.sin(pitch)], [0, -np.sin(pitch), np.cos(pitch)]])
    tilt = np.array([[np.cos(roll), -np.sin(roll)], [np.sin(roll), np.cos(roll)]])
    scale = UNIT * rng.uniform(0.92, 1.08) * np.array([rng.uniform(0.97, 1.03), 1])
    middle = np.array([SIZE / 2 - 0.35 * UNIT * np.sin(yaw), SIZE / 2 + 3])  # the detector follows the nose
    return scale[:, None] * (tilt @ (nod @ turn)[:2]), middle + rng.uniform(-3, 3, 2)


def _background(rng):
    """(224, 224, 3) uint8: a few soft colour fields."""
    cells = rng.randint(1, 6)
    field = rng.uniform(20, 235) + rng.uniform(-45, 45, 3) + rng.uniform(-60, 60, (cells, cells, 3))
    field = field.clip(0, 255).astype(np.uint8)
    how = cv2.INTER_CUBIC if rng.uniform() < 0.7 else cv2.INTER_NEAREST
    side = SIZE * OVERSAMPLING
    return cv2.resize(field, (side, side), interpolation=how)


def _paint(canvas, shapes, pose, shift):
    """Project all points at once, then draw shape by shape."""
    fixed = np.rint((place(shapes) @ pose.T + shift) * (OVERSAMPLING * 2**SUBPIXEL_BITS)).astype(np.int32)
    pixels_per_unit = OVERSAMPLING * np.abs(pose).max()
    start = 0
    colours = np.clip([shape.colour for shape in shapes], 0, 255).tolist()
    for shape, colour in zip(shapes, colours):
        part = fixed[start:start + len(shape.points)]
        start += len(shape.points)
        if shape.width:
            thickness = max(1, int(round(shape.width * pixels_per_unit)))
            cv2.polylines(canvas, [part], False, colour, thickness, cv2.LINE_AA, SUBPIXEL_BITS)
        else:
            cv2.fillPoly(canvas, [part], colour, cv2.LINE_AA, SUBPIXEL_BITS)


def _occlusion(rng):
    """Shapes before the face: most images have none."""
    kind = OCCLUSIONS[rng.randint(len(OCCLUSIONS))]
    colour = rng.uniform(10, 240, 3)
    if kind == 'patch':
        x, y = rng.uniform(-1, 1, 2)
        wide, high = rng.uniform(0.15, 0.45, 2)
        outline = [[x - wide, y - high], [x + wide, y - high], [x + wide, y + high], [x - wide, y + high]]
    elif kind == 'bar':
        x, slope = rng.uniform(-0.9, 0.9), rng.uniform(-0.6, 0.6)
        outline = [[x - slope, -2], [x - slope + 0.25, -2], [x + slope + 0.25, 2], [x + slope, 2]]
    elif kind == 'scarf':
        top = rng.uniform(0.5, 0.8)
        outline = smooth([[-1.4, top - 0.2], [0, top], [1.4, top - 0.2], [1.6, 2.2], [-1.6, 2.2]])
    elif kind == 'cap':
        brim = rng.uniform(-0.7, -0.5)
        outline = smooth([[-1.15, brim], [0, brim + 0.12], [1.15, brim], [0.95, -1.3], [0, -1.6], [-0.95, -1.3]])
    else:
        return _hand(rng) if kind == 'hand' else []
    return [flat(outline, colour, depth=0.75)]


def _hand(rng):
    """Four fingers and a palm that reach in from below."""
    side = rng.choice([-1, 1])
    skin = np.array([230.0, 180, 145]) * rng.uniform(0.45, 1.05)
    x, y = side * rng.uniform(0.5, 0.9), rng.uniform(0.2, 0.8)
    shapes = [flat(oval(x, y + 0.75, 0.42, 0.6), skin, depth=0.75)]
    for finger in range(4):
        base = x + side * (finger - 1.5) * 0.19
        reach = y - (0.25, 0.38, 0.34, 0.15)[finger]
        line = [[base, y + 0.6], [base - 0.05 * side, reach]]
        shapes += [flat(line, skin * 0.75, 0.2, 0.75), flat(line, skin, 0.16, 0.75)]
    return shapes


def _light(image, rng):
    """Directed light as a smooth field over the picture, its colour, and gamma. float32 0..255 in and out."""
    direction = rng.uniform(0, 2 * np.pi)
    strength = rng.uniform(0, 0.35)
    field = 1 + strength * (GRID[0] * np.cos(direction) + GRID[1] * np.sin(direction))
    field *= 1.05 - 0.12 * (GRID[0]**2 + GRID[1]**2)  # falls off towards the rim
    warmth = rng.uniform(-0.08, 0.08)
    tint = np.array([1 + warmth, 1 + rng.uniform(-0.03, 0.03), 1 - warmth])
    gain = rng.uniform(0.7, 1.1)
    field = (gain * np.maximum(field, 0.15)[:, :, None] * tint).astype(np.float32)
    image *= cv2.resize(field, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
    np.clip(image, 0, 255, out=image)
    return cv2.pow(image / 255, rng.uniform(0.8, 1.25)) * 255


def _camera(image, rng):
    """Blur, contrast, noise; -> uint8."""
    sigma = rng.uniform(0, 1.1)
    if sigma > 0.4:
        image = cv2.GaussianBlur(image, (0, 0), sigma)
    y, x = rng.randint(0, 256 - SIZE, 2)
    image += NOISE[y:y + SIZE, x:x + SIZE] * np.float32(rng.uniform(0, 7))
    return np.rint(np.clip(image, 0, 255)).astype(np.uint8)
