"""Hair of the demo faces: a table of styles, and the shapes that a style gives on a head.

A style is (hair_line, side_y, volume, back, waves). hair_line: points (x, y) from the right temple to the
left one, in head coordinates (see demo_shapes); side_y: how far the hair reaches down before the ear;
volume: factor on the person's own; back: (width, lower end) of the hair behind the head, or None; waves:
depth of the curls along the edge.
"""
import collections

import numpy as np

from common.demo_shapes import flat, on_head, oval, smooth

HairStyle = collections.namedtuple('HairStyle', 'hair_line side_y volume back waves')

HAIR_STYLES = {
    'bald': HairStyle(None, 0, 0, None, 0),
    'buzz': HairStyle([(0.74, -0.5), (0.4, -0.76), (0, -0.8), (-0.4, -0.76), (-0.74, -0.5)], -0.2, 0.15, None, 0),
    'crop': HairStyle([(0.78, -0.45), (0.5, -0.72), (0, -0.74), (-0.5, -0.72), (-0.78, -0.45)], -0.05, 0.9, None, 0),
    'receding': HairStyle([(0.8, -0.4), (0.62, -0.9), (0.25, -0.8), (0, -0.74), (-0.25, -0.8), (-0.62, -0.9),
                           (-0.8, -0.4)], -0.1, 0.5, None, 0),
    'parted': HairStyle([(0.8, -0.3), (0.72, -0.5), (0.3, -0.62), (-0.2, -0.76), (-0.5, -0.88), (-0.78, -0.5)],
                        0.0, 1.1, None, 0),
    'fringe': HairStyle([(0.8, -0.35), (0.55, -0.42), (0, -0.38), (-0.55, -0.42), (-0.8, -0.35)], 0.0, 1.0, None, 0),
    'quiff': HairStyle([(0.76, -0.5), (0.55, -0.8), (0.2, -0.9), (-0.2, -0.84), (-0.55, -0.74), (-0.76, -0.5)],
                       -0.1, 2.0, None, 0.02),
    'curls': HairStyle([(0.78, -0.4), (0.5, -0.66), (0, -0.72), (-0.5, -0.66), (-0.78, -0.4)], 0.0, 1.6, None, 0.09),
    'afro': HairStyle([(0.8, -0.4), (0.5, -0.72), (0, -0.78), (-0.5, -0.72), (-0.8, -0.4)], 0.1, 2.6, (1.3, 0.5), 0.06),
    'long': HairStyle([(0.84, -0.1), (0.66, -0.5), (0.3, -0.82), (0, -0.96), (-0.3, -0.82), (-0.66, -0.5),
                       (-0.84, -0.1)], 0.5, 0.9, (1.12, 1.7), 0),
    'swept': HairStyle([(0.84, 0.0), (0.74, -0.34), (0.3, -0.5), (-0.2, -0.74), (-0.5, -0.92), (-0.84, -0.4)],
                       0.4, 1.1, (1.14, 1.5), 0.03),
    'bob': HairStyle([(0.82, -0.2), (0.6, -0.38), (0, -0.42), (-0.6, -0.38), (-0.82, -0.2)], 0.6, 1.2, (1.18, 0.85), 0),
    'wavy': HairStyle([(0.86, -0.1), (0.64, -0.56), (0.2, -0.84), (-0.2, -0.84), (-0.64, -0.56), (-0.86, -0.1)],
                      0.4, 1.4, (1.22, 1.5), 0.07),
    'tied': HairStyle([(0.8, -0.46), (0.5, -0.84), (0, -0.94), (-0.5, -0.84), (-0.8, -0.46)], 0.0, 0.5, (0.5, -1.0), 0),
}


def hair_shapes(traits, outline):
    """-> (shapes behind the head, shapes on it).

    outline: (n, 2) of the head.
    """
    style = HAIR_STYLES[traits.hair_style]
    if style.hair_line is None:
        return [], []
    grow = traits.hair_volume * style.volume
    top = _top_edge(outline, style.side_y, grow, style.waves)
    line = np.array(style.hair_line) * [traits.hair_flip, 1] + [0, traits.hair_line]
    line = line if traits.hair_flip > 0 else line[::-1]  # right to left again
    front = np.concatenate([top, smooth(line[::-1], closed=False)[::-1]])
    share = 0.55 if traits.hair_style == 'buzz' else 1.0
    colour = traits.hair * share + traits.skin * (1 - share)
    return _back(style, traits, grow), [on_head(front, colour)] + _strands(top, line, traits, colour)


def _top_edge(outline, side_y, grow, waves):
    """The upper part of the outline, from the left side over the top to the right one, grown and waved."""
    upper = outline[outline[:, 1] < side_y]
    angle = np.arctan2(upper[:, 0], -upper[:, 1])
    upper, angle = upper[np.argsort(angle)], np.sort(angle)
    factor = 1.02 + grow * np.clip(1.1 - np.abs(angle) / 2.4, 0.3, 1) + waves * np.abs(np.sin(angle * 6))
    return upper * factor[:, None]


def _back(style, traits, grow):
    """Hair behind the head, as one polygon, or none."""
    if style.back is None:
        return []
    width, end = style.back
    if end < -0.9:  # tied in a knot
        return [flat(oval(0, -1.24, 0.36, 0.26, 14), traits.hair * 0.9, depth=-0.35)]
    width = width + grow * 0.4
    right = [[0.0, -1.2 - grow], [width * 0.75, -1.0 - grow * 0.6], [width, -0.3], [width * 1.02, 0.4 * end],
             [width * 0.95, end]]
    edge = np.array(right)
    points = smooth(np.concatenate([edge, (edge * [-1, 1])[:0:-1]]), steps=8)
    turn = np.arange(len(points))
    curled = points * (1 + style.waves * np.abs(np.sin(turn * 0.8)))[:, None]
    return [flat(curled, traits.hair * 0.82, depth=-0.35)]


def _strands(top, line, traits, colour):
    """Lines between the hair line and the upper edge: a hint of texture."""
    shapes = []
    hair_line = smooth(line[::-1], closed=False)  # left to right, as the top edge
    for number in range(traits.hair_strands):
        share = (number + 1) / (traits.hair_strands + 1)
        along = np.linspace(0.15, 0.85, 7)
        outer = top[(along * (len(top) - 1)).astype(int)]
        inner = hair_line[(along * (len(hair_line) - 1)).astype(int)]
        strand = outer * share + inner * (1 - share)
        shapes.append(on_head(strand, colour * 0.8 + 40 * (number % 2), 0.03))
    return shapes
