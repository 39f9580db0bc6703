"""Faces of the demo set: the traits of a person, and the shapes that they give (see demo_shapes)."""
import types

import numpy as np

from common.demo_hair import HAIR_STYLES, hair_shapes
from common.demo_shapes import both_sides, flat, mix, on_head, oval, smooth

SKIN_TONES = np.array([[244, 212, 190], [232, 188, 156], [216, 168, 130], [192, 136, 98], [156, 104, 72],
                       [118, 78, 54], [88, 58, 43]], np.float64)
HAIR_COLOURS = np.array([[24, 20, 20], [52, 34, 25], [92, 58, 36], [132, 88, 50], [178, 134, 78], [224, 190, 122],
                         [150, 66, 28], [146, 142, 140], [216, 214, 210]], np.float64)
IRIS_COLOURS = np.array([[66, 40, 22], [104, 66, 34], [122, 112, 52], [70, 110, 70], [84, 130, 168],
                         [120, 140, 150]], np.float64)
WHITE_OF_EYE = np.array([238.0, 238, 234])
PUPIL = np.array([16.0, 14, 14])
LASHES = np.array([34.0, 24, 22])
THROAT = np.array([80.0, 30, 32])
TEETH = np.array([240.0, 236, 226])
BEARDS = ('none', 'none', 'none', 'none', 'stubble', 'moustache', 'goatee', 'full')
GLASSES = ('none', 'none', 'none', 'none', 'round', 'square', 'wide')
ACROSS = np.linspace(-1, 1, 9)  # along a lid, corner to corner


def draw_traits(rng):
    """What stays the same in all images of one person, drawn from rng (RandomState)."""
    pick = rng.uniform
    tone = pick(0, len(SKIN_TONES) - 1)
    skin = mix(SKIN_TONES[int(tone)], SKIN_TONES[int(tone) + 1], tone - int(tone))
    hair = np.clip(HAIR_COLOURS[rng.randint(len(HAIR_COLOURS))] * pick(0.8, 1.2) + pick(-8, 8, 3), 8, 245)
    style = sorted(HAIR_STYLES)[rng.randint(len(HAIR_STYLES))]
    is_long = HAIR_STYLES[style].back is not None
    return types.SimpleNamespace(
        skin=np.clip(skin + pick(-8, 8, 3), 30, 255), hair=hair, hair_style=style, hair_volume=pick(0.04, 0.22),
        hair_line=pick(-0.1, 0.1), hair_flip=rng.choice([-1, 1]), hair_strands=rng.randint(0, 4),
        cheek=pick(0.82, 1.06), jaw=pick(0.54, 0.94), chin=pick(0.2, 0.52), chin_y=pick(1.0, 1.32),
        temple=pick(0.78, 0.92), ear=pick(0.12, 0.28), ear_y=pick(-0.02, 0.14), ear_out=pick(0.0, 0.1),
        brow_width=pick(0.03, 0.15), brow_arch=pick(-0.01, 0.12), brow_tilt=pick(-0.1, 0.12),
        brow_length=pick(0.2, 0.3), brow_y=pick(0.22, 0.4), brow_dark=pick(0.4, 0.85),
        eye_x=pick(0.34, 0.47), eye_y=pick(-0.16, -0.04), eye_width=pick(0.12, 0.24), eye_height=pick(0.06, 0.18),
        eye_tilt=pick(-0.06, 0.08), iris=IRIS_COLOURS[rng.randint(len(IRIS_COLOURS))] * pick(0.8, 1.2),
        iris_size=pick(0.07, 0.11), lash=pick(0.02, 0.05), bags=pick(0, 1), lid_shadow=pick(0, 1)**2,
        nose_length=pick(0.28, 0.56), nose_width=pick(0.09, 0.28), nose_bridge=pick(0.03, 0.09),
        nose_tip=pick(0.05, 0.12), mouth_y=pick(0.6, 0.78), mouth_width=pick(0.2, 0.46),
        lip_upper=pick(0.02, 0.1), lip_lower=pick(0.04, 0.15), bow=pick(0, 0.05),
        lip_red=pick(0.1, 0.9), blush=pick(0, 0.4), age=pick(0, 1)**2,
        freckles=pick(0, 1, (rng.choice([0, 0, 0, 24]), 2)), moles=_draw_moles(rng),
        beard='none' if is_long else BEARDS[rng.randint(len(BEARDS))],
        glasses=GLASSES[rng.randint(len(GLASSES))], frame=HAIR_COLOURS[rng.randint(3)] + pick(0, 90, 3))


def _draw_moles(rng):
    """(n, 3): place and radius of up to three moles."""
    count = rng.choice([0, 0, 1, 1, 2, 3])
    side = rng.choice([-1, 1], count)
    return np.stack([side * rng.uniform(0.15, 0.7, count), rng.uniform(0.05, 0.9, count),
                     rng.uniform(0.03, 0.055, count)], axis=1)


class Face:
    """One person. What no expression changes is computed once."""

    def __init__(self, traits):
        edge = _outline(traits)
        self.traits = traits
        self._hair_back, self._hair_front = hair_shapes(traits, edge)
        self._head = _ears(traits) + _skin(traits, edge) + _beard(traits)
        self._middle = _nose(traits) + _moustache(traits)
        self._glasses = _glasses(traits)

    def shapes(self, expression):
        """All shapes of the head, back to front; expression: see demo_photo.draw_expression."""
        shapes = self._hair_back + _neck(self.traits, expression.clothes) + self._head
        shapes += _mouth(self.traits, expression) + self._middle
        for side in (-1, 1):
            shapes += _eye(self.traits, expression, side) + _brow(self.traits, expression, side)
        return shapes + self._hair_front + (self._glasses if expression.wears_glasses else [])


def _outline(traits):
    """Closed outline of the head (n, 2)."""
    t = traits
    right = np.array([[0, -1.16], [0.61 * t.temple, -1.04], [t.temple, -0.62], [t.cheek, -0.1],
                      [t.cheek * 0.97, 0.3], [t.jaw, 0.78], [t.chin, t.chin_y - 0.07]])
    return smooth(np.concatenate([right, [[0, t.chin_y]], (right * [-1, 1])[:0:-1]]))


def _neck(traits, clothes):
    width = traits.jaw * 0.8
    neck = [[-width, 0.5], [width, 0.5], [width * 1.05, 1.6], [-width * 1.05, 1.6]]
    body = smooth([[-2.2, 2.4], [-1.7, 1.62], [-width, 1.36], [0, 1.52], [width, 1.36], [1.7, 1.62], [2.2, 2.4]])
    return [flat(neck, traits.skin * 0.78, depth=-0.2), flat(body, clothes, depth=-0.2)]


def _ears(traits):
    y, size = traits.ear_y, traits.ear
    shapes = []
    for x in (traits.cheek + traits.ear_out, -traits.cheek - traits.ear_out):
        shapes.append(flat(oval(x, y, size * 0.62, size * 1.25, 12), traits.skin * 0.9, depth=-0.1))
        shapes.append(flat(oval(x, y, size * 0.3, size * 0.8, 10), traits.skin * 0.76, depth=-0.1))
    return shapes


def _skin(traits, edge):
    depth = 0.3 * np.maximum(edge[:, 1], 0)  # the chin stands before the ears
    closed = np.concatenate([edge, edge[:1]])
    shapes = [flat(edge, traits.skin, depth=depth),
              flat(closed, traits.skin * 0.72, 0.025, np.append(depth, depth[0]))]
    red = mix(traits.skin, [225, 110, 100], traits.blush)
    shapes += [on_head(points, red) for points in both_sides(oval(0.55, 0.38, 0.2, 0.14))]
    for across, down in traits.freckles:
        spot = oval((across - 0.5) * 1.3, 0.12 + 0.3 * down, 0.018, 0.018, 5)
        shapes.append(on_head(spot, traits.skin * [0.82, 0.72, 0.66]))
    line = mix(traits.skin, traits.skin * 0.72, traits.age)
    fold = smooth([[0.2, 0.3], [0.34, 0.5], [0.4, 0.72]], closed=False)
    shapes += [on_head(points, line, 0.03) for points in both_sides(fold)]
    shapes.append(on_head(smooth([[-0.4, -0.62], [0, -0.66], [0.4, -0.62]], closed=False), line, 0.025))
    return shapes + [on_head(oval(x, y, r, r, 8), traits.skin * 0.42) for x, y, r in traits.moles]


def _beard(traits):
    if traits.beard not in ('stubble', 'full', 'goatee'):
        return []
    colour = mix(traits.skin, traits.hair, 0.35 if traits.beard == 'stubble' else 0.85)
    y, end = traits.mouth_y, traits.chin_y
    if traits.beard == 'goatee':
        return [on_head(smooth([[-0.26, y + 0.04], [0, y + 0.16], [0.26, y + 0.04], [0.25, end - 0.06],
                                [0, end + 0.08], [-0.25, end - 0.06]]), colour)]
    right = np.array([[traits.cheek * 0.96, 0.1], [traits.jaw * 1.03, 0.76], [traits.chin, end]])
    inner = np.array([[0.42, y - 0.1], [traits.cheek * 0.8, 0.34]])
    mirror = [-1, 1]
    return [on_head(smooth(np.concatenate([right, [[0, end + 0.07]], (right * mirror)[::-1], (inner * mirror)[::-1],
                                           [[0, y - 0.17]], inner])), colour)]


def _moustache(traits):
    if traits.beard not in ('moustache', 'full', 'goatee'):
        return []
    y, width = traits.mouth_y - traits.lip_upper, traits.mouth_width
    points = [[0, y - 0.1], [0.6 * width, y - 0.09], [width * 1.1, y + 0.06], [0.5 * width, y], [0, y - 0.02],
              [-0.5 * width, y], [-width * 1.1, y + 0.06], [-0.6 * width, y - 0.09]]
    return [on_head(smooth(points), mix(traits.skin, traits.hair, 0.9), lift=0.08)]


def _mouth(traits, expression):
    t = traits
    width = t.mouth_width * (1 + 0.25 * expression.smile)
    corner = t.mouth_y - 0.12 * expression.smile
    gap = 0.16 * expression.mouth_open
    lip = mix(t.skin * 0.82, [190, 70, 76], t.lip_red)
    top, bottom = t.mouth_y - t.lip_upper, t.mouth_y + gap + t.lip_lower
    lips = [[-width, corner], [-0.3 * width, top - t.bow], [0, top], [0.3 * width, top - t.bow], [width, corner],
            [0.5 * width, bottom - 0.2 * t.lip_lower], [0, bottom], [-0.5 * width, bottom - 0.2 * t.lip_lower]]
    slit = [[-width, corner], [0, t.mouth_y + 0.01], [width, corner]]
    shapes = [on_head(smooth(lips), lip, lift=0.05),
              on_head(smooth(slit, closed=False), lip * 0.5, 0.03, lift=0.05)]
    if gap > 0.03:
        inside = [[-0.8 * width, corner + 0.02], [0, t.mouth_y], [0.8 * width, corner + 0.02], [0, t.mouth_y + gap]]
        teeth = [[-0.6 * width, corner + 0.05], [0, t.mouth_y], [0.6 * width, corner + 0.05],
                 [0, t.mouth_y + 0.45 * gap]]
        shapes += [on_head(smooth(inside), THROAT, lift=0.05), on_head(smooth(teeth), TEETH, lift=0.05)]
    return shapes


def _nose(traits):
    t = traits
    top, tip, width = t.eye_y + 0.02, t.eye_y + t.nose_length, t.nose_width
    side = [[t.nose_bridge, top], [t.nose_bridge * 1.2, tip - 0.16], [width * 0.9, tip - 0.02], [0.3 * width, tip]]
    wings = [[-width, tip - 0.05], [-width * 0.8, tip + 0.03], [-width * 0.3, tip + 0.02], [0, tip + 0.06],
             [width * 0.3, tip + 0.02], [width * 0.8, tip + 0.03], [width, tip - 0.05]]
    nostril = oval(width * 0.5, tip + 0.015, width * 0.2, 0.025, 8)
    return [on_head(smooth(side), t.skin * 0.88, lift=0.14),
            on_head(oval(0, tip - 0.03, t.nose_tip * 1.1, t.nose_tip, 12), t.skin * 1.05, lift=0.2),
            on_head(smooth(wings, closed=False), t.skin * 0.62, 0.03, lift=0.16),
            *[on_head(points, t.skin * 0.4, lift=0.16) for points in both_sides(nostril)]]


def _eye(traits, expression, side):
    t = traits
    x, height = side * t.eye_x, t.eye_height * expression.eye_open
    xs = x + t.eye_width * ACROSS
    middle, bend = t.eye_y - t.eye_tilt * side * ACROSS, 1 - ACROSS**2
    upper, lower = middle - height * bend, middle + 0.55 * height * bend
    lid, under = np.stack([xs, upper], axis=1), np.stack([xs, lower], axis=1)
    gaze = (x + 0.07 * expression.gaze_x, t.eye_y + 0.03 * expression.gaze_y)
    shapes = [on_head(lid - (0, 0.05), t.skin * (0.92 - 0.25 * t.lid_shadow), 0.08, lift=0.02),
              on_head(under[1:-1] + (0, 0.09), t.skin * (1 - 0.16 * t.bags), 0.05, lift=0.02),
              on_head(np.concatenate([lid, under[-2:0:-1]]), WHITE_OF_EYE, lift=0.02)]
    for radius, colour in ((t.iris_size, t.iris), (0.5 * t.iris_size, PUPIL)):
        disc = oval(*gaze, radius, radius, 14)
        disc[:, 1] = np.clip(disc[:, 1], np.interp(disc[:, 0], xs, upper), np.interp(disc[:, 0], xs, lower))
        shapes.append(on_head(disc, colour, lift=0.02))
    if expression.eye_open > 0.6:
        shapes.append(on_head(oval(gaze[0] - 0.03, gaze[1] - 0.03, 0.02, 0.02, 6), WHITE_OF_EYE, lift=0.02))
    return shapes + [on_head(lid, LASHES, t.lash, lift=0.02)]


def _brow(traits, expression, side):
    t = traits
    y = t.eye_y - t.brow_y - 0.07 * expression.brow_lift
    inner, outer = t.eye_x - t.brow_length * 0.9, t.eye_x + t.brow_length
    tilt = t.brow_tilt + 0.08 * expression.frown
    curve = [[side * inner, y + tilt], [side * t.eye_x, y - t.brow_arch], [side * outer, y + 0.04 - tilt * 0.5]]
    colour = mix(t.skin, np.minimum(t.hair, 130), t.brow_dark)
    return [on_head(smooth(curve, closed=False), colour, t.brow_width, lift=0.05)]


def _glasses(traits):
    t = traits
    if t.glasses == 'none':
        return []
    if t.glasses == 'round':
        lens = oval(t.eye_x, t.eye_y + 0.02, 0.28, 0.27)
    else:
        wide, high = (0.3, 0.2) if t.glasses == 'square' else (0.34, 0.16)
        lens = smooth([[t.eye_x - wide, t.eye_y - high], [t.eye_x + wide, t.eye_y - high],
                       [t.eye_x + wide * 0.9, t.eye_y + high * 1.2], [t.eye_x - wide * 0.9, t.eye_y + high * 1.2]])
    inner, outer = lens[:, 0].min(), lens[:, 0].max()
    bridge = smooth([[-inner, t.eye_y], [0, t.eye_y - 0.06], [inner, t.eye_y]], closed=False)
    arm = [[outer, t.eye_y - 0.05], [1.0, t.eye_y - 0.02]]
    parts = [*both_sides(np.concatenate([lens, lens[:1]])), bridge, *both_sides(arm)]
    return [on_head(points, t.frame, 0.045, lift=0.14) for points in parts]
