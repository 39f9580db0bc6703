"""Naive float64 twins of the fast code: whole matrices, no shards, no blocks, readable at a glance."""
import numpy as np


def unit(rows):
    norm = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.divide(rows, norm, out=np.zeros_like(rows), where=norm > 0)


def psi(angle):
    """cos up to pi, falling on past it (SphereFace, section 3.3)."""
    turns = np.floor(angle / np.pi)
    return (-1.0) ** turns * np.cos(angle) - 2.0 * turns


def adaface(norms, running, m, h, momentum):
    """m2 (N,) and m3 (N,) of AdaFace, and the running (mean, deviation) of lengths after these rows."""
    norms = np.clip(norms.astype(np.float64), 1e-3, 100.0)
    deviation = norms.std(ddof=1) if len(norms) > 1 else 0.0
    running = momentum * np.array(running) + (1 - momentum) * np.array([norms.mean(), deviation])
    quality = np.clip(h * (norms - running[0]) / (running[1] + 1e-3), -1.0, 1.0)
    return -m * quality, m + m * quality, running


class DenseHead:
    """Softmax cross entropy over all classes, with momentum SGD. Centers (C, D), everything float64.

    margins: (m1, m2, m3) with scale s for cosine logits, numbers or one per row; None for the inner product with bias.
    Centers may be (C, J, D), J of a class: the most similar counts, the first of equal ones.
    interclass_filter: cosine (of that center) above which a class that is not the label is left out; 0: none is.
    label_smoothing: share of the target that is spread over all classes.
    """

    label_smoothing = 0.0

    def __init__(self, centers, margins, scale, bias=None, interclass_filter=0.0):
        self.interclass_filter = interclass_filter
        self.centers = centers.astype(np.float64)
        self.momentum = np.zeros_like(self.centers)
        self.margins, self.scale = margins, scale
        self.bias = None if bias is None else bias.astype(np.float64)
        self.bias_momentum = None if bias is None else np.zeros_like(self.bias)

    def nearest(self, embedding):
        """Which center counts (N, C), its similarity (without bias) and its cosine."""
        several = self.centers.reshape(len(self.centers), -1, self.centers.shape[-1])              # (C, J, D)
        cosine = np.einsum('nd,cjd->ncj', unit(embedding), unit(several))
        similarity = np.einsum('nd,cjd->ncj', embedding, several) if self.margins is None else cosine
        winner = similarity.argmax(axis=2)
        chosen = winner[:, :, None]
        return (winner, np.take_along_axis(similarity, chosen, 2)[:, :, 0],
                np.clip(np.take_along_axis(cosine, chosen, 2)[:, :, 0], -1.0, 1.0))

    def logits(self, embedding, label):
        """Logits (N, C), with margin, and d logit / d similarity (N, C)."""
        rows = np.arange(len(label))
        _, similarity, cosine = self.nearest(embedding)
        left_out = cosine > self.interclass_filter if self.interclass_filter else np.zeros(cosine.shape, bool)
        left_out[rows, label] = False
        if self.margins is None:
            logit = similarity + (0.0 if self.bias is None else self.bias)
            return np.where(left_out, -np.inf, logit), np.ones_like(logit)
        m1, m2, m3 = self.margins
        logit, slope = self.scale * cosine, np.full(cosine.shape, self.scale)
        theta = np.arccos(cosine[rows, label])
        angle = np.maximum(m1 * theta + m2, 0.0)
        logit[rows, label] = self.scale * (psi(angle) - m3)
        slope[rows, label] = self.scale * m1 * np.abs(np.sin(angle)) / np.maximum(np.sin(theta), 1e-12)
        return np.where(left_out, -np.inf, logit), slope

    def gradients(self, embedding, label):
        """Mean loss, and its gradients for embedding (N, D), centers as they are and bias (C,)."""
        embedding = embedding.astype(np.float64)
        rows = np.arange(len(label))
        logit, slope = self.logits(embedding, label)
        logit = logit - logit.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(logit).sum(axis=1))
        spread = self.label_smoothing
        loss = (log_sum - (1.0 - spread) * logit[rows, label]).mean()
        if spread:
            loss -= spread * logit.mean()
        d_logit = np.exp(logit - log_sum[:, None])
        d_logit[rows, label] -= 1.0 - spread
        d_logit -= spread / logit.shape[1]
        d_similarity = d_logit / len(label) * slope
        several = self.centers.reshape(len(self.centers), -1, self.centers.shape[-1])              # (C, J, D)
        won = self.nearest(embedding)[0][:, :, None] == np.arange(several.shape[1])
        d_each = d_similarity[:, :, None] * won                                                    # (N, C, J)

        def both(x, w):
            return np.einsum('ncj,cjd->nd', d_each, w), np.einsum('ncj,nd->cjd', d_each, x)
        if self.margins is None:
            d_embedding, d_centers = both(embedding, several)
            return loss, d_embedding, d_centers.reshape(self.centers.shape), d_similarity.sum(axis=0)
        d_embedding, d_centers = both(unit(embedding), unit(several))
        return (loss, through_unit(d_embedding, embedding),
                through_unit(d_centers, several).reshape(self.centers.shape), None)

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
    """Gradient for rows (..., D), given that for rows / |rows|."""
    norm = np.linalg.norm(rows, axis=-1, keepdims=True)
    direction = unit(rows)
    tangent = d_unit - (d_unit * direction).sum(axis=-1, keepdims=True) * direction
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
