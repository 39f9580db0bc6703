"""Verification sets, evaluated while training."""
import logging
import time

from common.verification import evaluate

log = logging.getLogger('shardface')


class Validator:
    """Evaluates the backbone on verification sets; embeddings come in the training's own batch size."""

    def __init__(self, sets, image_size):
        """sets: VerificationSet list, may be empty; image_size (height, width)."""
        self.sets, self.image_size = sets, image_size
        self.results = []                          # of the last run: (name, VerificationResult, seconds)

    def run(self, backbone, num_update):
        """Log one line per set; return the mean accuracy with flip, or None without sets."""
        backbone.average_statistics()
        self.results = []
        for vset in self.sets:
            begin = time.monotonic()
            result = evaluate(vset, backbone.embed, backbone.embed_batch_size, self.image_size)
            seconds = time.monotonic() - begin
            log.info('verification %s at step %d: accuracy %.4f +- %.4f, with flip %.4f +- %.4f, '
                     'XNorm %.2f, %.1f s%s', vset.name, num_update, result.accuracy, result.accuracy_std,
                     result.accuracy_flip, result.accuracy_flip_std, result.xnorm, seconds,
                     ' (%s)' % result.note if result.note else '')
            self.results.append((vset.name, result, seconds))
        accuracies = [result.accuracy_flip for _, result, _ in self.results]
        return sum(accuracies) / len(accuracies) if accuracies else None
