"""Geometry of the demo faces.

Head coordinates: the origin is the middle of the head, x to the right of the picture, y down, z towards
the viewer; one unit is about half the width of a head. Shapes are listed back to front.
"""
import collections
import functools

import numpy as np

# points (n, 3): x, y, and z or, where is_on_head, the height above the face; colour (R, G, B) 0..255;
# width: 0 for a filled polygon, else that of an open line, in head units
Shape = collections.namedtuple('Shape', 'points colour width is_on_head')


def on_head(points, colour, width=0, lift=0.0):
    """Shape that lies on the front of the head; points (n, 2)."""
    return Shape(_with_depth(points, lift), colour, width, True)


def flat(points, colour, width=0, depth=0.0):
    """Shape that stands upright at one depth, or at (n,) depths; points (n, 2)."""
    return Shape(_with_depth(points, depth), colour, width, False)


def _with_depth(points, depth):
    out = np.empty((len(points), 3))
    out[:, :2] = points
    out[:, 2] = depth
    return out


def place(shapes):
    """All points of the shapes in space, (n, 3): an ellipsoid is the front of the head."""
    points = np.concatenate([shape.points for shape in shapes])
    is_on_head = np.repeat([shape.is_on_head for shape in shapes], [len(shape.points) for shape in shapes])
    inside = 1 - (points[:, 0] / 1.05)**2 - (points[:, 1] / 1.3)**2
    points[:, 2] += 0.8 * np.sqrt(np.maximum(inside, 0)) * is_on_head
    return points


def mix(first, second, share):
    """Colour between two: first where share is 0, second where it is 1."""
    return np.asarray(first) * (1 - share) + np.asarray(second) * share


def smooth(control, closed=True, steps=5):
    """Catmull-Rom curve through the control points (n, 2) -> (m, 2), steps points for each piece."""
    return _spline_weights(len(control), closed, steps) @ np.asarray(control, np.float64)


@functools.lru_cache(maxsize=None)
def _spline_weights(num_control, closed, steps):
    """(m, n): the share of each control point in each point of the curve."""
    t = np.arange(steps) / steps
    basis = 0.5 * np.stack([-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2], 1)
    num_pieces = num_control if closed else num_control - 1
    weights = np.zeros((num_pieces * steps + (not closed), num_control))
    for piece in range(num_pieces):
        for column in range(4):
            neighbour = piece + column - 1
            neighbour = neighbour % num_control if closed else min(max(neighbour, 0), num_control - 1)
            weights[piece * steps:(piece + 1) * steps, neighbour] += basis[:, column]
    if not closed:
        weights[-1, -1] = 1
    return weights


@functools.lru_cache(maxsize=None)
def _circle(num_points):
    angle = np.arange(num_points) * (2 * np.pi / num_points)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def oval(x, y, radius_x, radius_y, num_points=16):
    """Points (n, 2) of an ellipse."""
    return _circle(num_points) * (radius_x, radius_y) + (x, y)


def both_sides(points):
    """A shape and its mirror image."""
    points = np.asarray(points, np.float64)
    return points, points * (-1, 1)
