"""Whole training steps beside the usual loop, alternating in one run: images per second, and where the time goes.

python -m benchmarks.end_to_end [--classes 2000 50000 200000] [--network demo] [--batch 64] [--devices 2]

usual: the same network through Module, images read one by one by an indexed iterator (mx.image, float32) with MXNet's
PrefetchingIter, and the layer with whole matrices, one-hot mask and autograd on the same devices (usual_head.py).
Written for this benchmark from the textbook. Shares of the step are measured with a wait after each part, which
costs overlap, so they explain and do not add up to the rate. waiting: share of time that our loop waited for data.
"""
import argparse
import os
import random
import statistics
import tempfile
import time

import numpy as np

SIZE = 112
EMBEDDING = 512
SOLVER = (0.01, 0.9, 5e-4)
IMAGES = 6000


class UsualIter:
    """Batches of an indexed set, decoded one image after the other."""

    def __init__(self, mx, path, batch_size):
        self._mx, self._batch_size = mx, batch_size
        self._record = mx.recordio.MXIndexedRecordIO(path[:-3] + 'idx', path, 'r')
        self._keys, self._next = list(self._record.keys), 0

    def batch(self):
        """(images (B, 3, H, W) float32, labels (B,) float32)."""
        mx = self._mx
        images = mx.nd.empty((self._batch_size, 3, SIZE, SIZE))
        labels = mx.nd.empty((self._batch_size,))
        for row in range(self._batch_size):
            if self._next == 0:
                random.shuffle(self._keys)
            header, encoded = mx.recordio.unpack(self._record.read_idx(self._keys[self._next]))
            self._next = (self._next + 1) % len(self._keys)
            image = mx.image.imdecode(encoded)
            if random.random() < 0.5:
                image = mx.nd.flip(image, axis=1)
            images[row] = mx.nd.transpose(image.astype('float32'), axes=(2, 0, 1))
            labels[row] = header.label
        return images, labels


class UsualLoop:
    """The usual training, with a thread that reads ahead."""

    def __init__(self, mx, path, network, num_classes, batch_size, contexts):
        from benchmarks.usual_head import UsualHead
        from config import generate_config
        from recognition.build_symbol import build_symbol
        from recognition.sharding import shard_range
        from symbols import get_backbone
        self._mx, total = mx, batch_size * len(contexts)
        settings = dict(generate_config(network, 'demo', 'arcface'), emb_size=EMBEDDING)
        self._module = mx.mod.Module(build_symbol(settings, get_backbone), label_names=None, context=contexts)
        self._module.bind([mx.io.DataDesc('data', (total, 3, SIZE, SIZE), 'float32')])
        self._module.init_params(mx.init.Xavier(rnd_type='gaussian', factor_type='out', magnitude=2))
        self._module.init_optimizer(kvstore='device', optimizer='sgd', optimizer_params={
            'learning_rate': SOLVER[0], 'momentum': SOLVER[1], 'wd': SOLVER[2]})
        edges = [shard_range(num_classes, shard, len(contexts)) for shard in range(len(contexts))]
        self._head = UsualHead(mx, edges, EMBEDDING, contexts)
        self._images = mx.io.PrefetchingIter(self._data_iter(path, total))

    def _data_iter(self, path, total):
        mx, reader = self._mx, UsualIter(self._mx, path, total)

        class Images(mx.io.DataIter):
            provide_data = [mx.io.DataDesc('data', (total, 3, SIZE, SIZE))]
            provide_label = [mx.io.DataDesc('softmax_label', (total,))]

            def next(self):
                images, labels = reader.batch()
                return mx.io.DataBatch([images], [labels], pad=0)
        return Images(total)

    def step(self):
        batch = next(self._images)
        self._module.forward(batch, is_train=True)
        _, d_embedding = self._head.step(self._module.get_outputs()[0], batch.label[0], SOLVER)
        self._module.backward([d_embedding])
        self._module.update()


class OurLoop:
    """A training as train_parall.py builds it, step by step."""

    def __init__(self, mx, folder, network, num_classes, batch_size, contexts):
        import config
        from recognition.build import build_trainer
        from recognition.collective import LocalCollective
        from recognition.settings import complete
        from symbols import get_backbone
        cfg = complete(dict(config.generate_config(network, 'demo', 'arcface'), dataset_path=folder,
                            num_classes=num_classes, image_shape=[SIZE, SIZE, 3], emb_size=EMBEDDING, ckpt=0,
                            val_targets=[], per_batch_size=batch_size, lr=SOLVER[0], loss_s=64.0))
        trainer = build_trainer(cfg, get_backbone, contexts, os.path.join(folder, 'model'), LocalCollective())
        self._mx, self.module, self.images = mx, trainer.module, trainer.train_iter

    def batch(self):
        found = next(self.images, None)
        if found is None:
            self.images.reset()
            found = next(self.images)
        return found

    def step(self):
        self.module.train_step(self.batch())

    def parts(self):
        """{part: seconds} of one step, with a wait after each."""
        module, seconds, begin = self.module, {}, time.perf_counter()

        def done(name):
            nonlocal begin
            self._mx.nd.waitall()
            seconds[name] = time.perf_counter() - begin
            begin = time.perf_counter()
        batch = self.batch()
        done('data')
        embedding = module.backbone.forward(batch.data[0])
        done('backbone forward')
        _, d_embedding = module.head.forward_backward(embedding, batch.label[0].asnumpy(), SOLVER)
        done('classification layer')
        module.backbone.backward(d_embedding)
        module.backbone.update(1)
        done('backbone backward and update')
        return seconds


def seconds_of(mx, step, count):
    begin = time.perf_counter()
    for _ in range(count):
        step()
    mx.nd.waitall()
    return (time.perf_counter() - begin) / count


def measure(path, args, num_classes):
    """(seconds of ours, of usual, share of waiting, {part: share})."""
    from common.mxnet_loader import mx
    contexts = [mx.cpu(device) for device in range(args.devices)]
    folder = os.path.dirname(path)
    ours = OurLoop(mx, folder, args.network, num_classes, args.batch, contexts)
    usual = UsualLoop(mx, path, args.network, num_classes, args.batch, contexts)
    times, waited = [], []
    for number in range(args.rounds + 1):
        before = ours.images.wait_seconds
        own = seconds_of(mx, ours.step, args.steps)
        share = (ours.images.wait_seconds - before) / (own * args.steps)
        pair = own, seconds_of(mx, usual.step, args.steps)
        if number:                                                       # the first round warms up
            times.append(pair)
            waited.append(share)
    parts = [ours.parts() for _ in range(4)][1:]
    found = {name: statistics.median(part[name] for part in parts) for name in parts[0]}
    ours.images.close()
    own, other = map(statistics.median, zip(*times))
    return own, other, statistics.median(waited), {name: value / sum(found.values()) for name, value in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--classes', type=int, nargs='+', default=[2000, 50000, 200000])
    parser.add_argument('--network', default='demo', help='preset of config.py; a light one lets reader and layer show')
    parser.add_argument('--batch', type=int, default=64, help='images per device (default: 64)')
    parser.add_argument('--devices', type=int, default=2, help='CPU devices (default: 2)')
    parser.add_argument('--steps', type=int, default=4, help='steps per turn (default: 4)')
    parser.add_argument('--rounds', type=int, default=5)
    args = parser.parse_args()
    threads = max(1, (os.cpu_count() or 1) // args.devices)
    os.environ.setdefault('OMP_NUM_THREADS', str(threads))               # before MXNet is imported
    from benchmarks.reader import make_set
    rows = args.batch * args.devices
    print('%s, embedding of %d, batch %d x %d' % (args.network, EMBEDDING, args.batch, args.devices))
    with tempfile.TemporaryDirectory() as folder:
        np.random.seed(0)
        path, _ = make_set(folder, IMAGES)
        os.remove(os.path.join(folder, 'property'))                      # its number of classes is not ours
        for number, num_classes in enumerate(args.classes):
            own, other, waited, parts = measure(path, args, num_classes)
            if not number:
                print('| classes | images/s | usual images/s | ratio | waiting | %s |' % ' | '.join(parts))
                print('|%s' % ('---|' * (5 + len(parts))))
            print('| %d | %.1f | %.1f | %.2f | %.1f%% | %s |' % (
                num_classes, rows / own, rows / other, other / own, 100 * waited,
                ' | '.join('%.0f%%' % (100 * share) for share in parts.values())), flush=True)


if __name__ == '__main__':
    main()
