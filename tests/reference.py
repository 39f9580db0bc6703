"""Naive float64 twins of the fast code: whole matrices, no shards, no blocks, readable at a glance."""
import numpy as np


def unit(rows):
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, norm, out=np.zeros_like(rows), where=norm > 0)


def psi(angle):
    """cos up to pi, falling on past it (SphereFace, section 3.3)."""
    turns = np.floor(angle / np.pi)
    return (-1.0) ** turns * np.cos(angle) - 2.0 * turns


class DenseHead:
    """Softmax cross entropy over all classes, with momentum SGD. Centers (C, D), everything float64.

    margins: (m1, m2, m3) with scale s for cosine logits; None for the inner product with bias.
    """

    def __init__(self, centers, margins, scale, bias=None):
        self.centers = centers.astype(np.float64)
        self.momentum = np.zeros_like(self.centers)
        self.margins, self.scale = margins, scale
        self.bias = None if bias is None else bias.astype(np.float64)
        self.bias_momentum = None if bias is None else np.zeros_like(self.bias)

    def logits(self, embedding, label):
        """Logits (N, C), with margin, and d logit / d similarity (N, C)."""
        rows = np.arange(len(label))
        if self.margins is None:
            logit = embedding @ self.centers.T + (0.0 if self.bias is None else self.bias)
            return logit, np.ones_like(logit)
        m1, m2, m3 = self.margins
        cosine = np.clip(unit(embedding) @ unit(self.centers).T, -1.0, 1.0)
        logit, slope = self.scale * cosine, np.full(cosine.shape, self.scale)
        theta = np.arccos(cosine[rows, label])
        angle = m1 * theta + m2
        logit[rows, label] = self.scale * (psi(angle) - m3)
        slope[rows, label] = self.scale * m1 * np.abs(np.sin(angle)) / np.maximum(np.sin(theta), 1e-12)
        return logit, slope

    def gradients(self, embedding, label):
        """Mean loss, and its gradients for embedding (N, D), centers (C, D) and bias (C,)."""
        embedding = embedding.astype(np.float64)
        rows = np.arange(len(label))
        logit, slope = self.logits(embedding, label)
        logit = logit - logit.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(logit).sum(axis=1))
        loss = (log_sum - logit[rows, label]).mean()
        d_logit = np.exp(logit - log_sum[:, None])
        d_logit[rows, label] -= 1.0
        d_similarity = d_logit / len(label) * slope
        if self.margins is None:
            return loss, d_similarity @ self.centers, d_similarity.T @ embedding, d_similarity.sum(axis=0)
        return (loss,
                through_unit(d_similarity @ unit(self.centers), embedding),
                through_unit(d_similarity.T @ unit(embedding), self.centers), None)

    def step(self, embedding, label, lr, momentum, wd):
        """One update of centers (and bias); returns loss and d_embedding."""
        loss, d_embedding, d_centers, d_bias = self.gradients(embedding, label)
        self.momentum = momentum * self.momentum - lr * (d_centers + wd * self.centers)
        self.centers = self.centers + self.momentum
        if self.bias is not None:
            self.bias_momentum = momentum * self.bias_momentum - 2.0 * lr * d_bias
            self.bias = self.bias + self.bias_momentum
        return loss, d_embedding


def through_unit(d_unit, rows):
    """Gradient for rows (N, D), given that for rows / |rows|."""
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    direction = unit(rows)
    tangent = d_unit - (d_unit * direction).sum(axis=1, keepdims=True) * direction
    return np.divide(tangent, norm, out=np.zeros_like(tangent), where=norm > 0)


def numeric_gradient(function, array, step=1e-6):
    """Central differences of a scalar function over every entry of a float64 array."""
    gradient = np.zeros_like(array)
    for place in np.ndindex(array.shape):
        moved = array.copy()
        moved[place] += step
        high = function(moved)
        moved[place] -= 2 * step
        gradient[place] = (high - function(moved)) / (2 * step)
    return gradient
