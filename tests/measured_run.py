"""Train two steps and print, in one line, the planned and the measured bytes: python -m tests.measured_run JSON.

JSON: settings, and "num_devices". Measured is the peak of resident memory beyond that of a started MXNet.
"""
import json
import sys

import numpy as np

import config
from common.memory import resident
from common.mxnet_loader import mx
from recognition.build import build_backbone, build_head
from recognition.collective import LocalCollective
from recognition.optimizer import MultiStepSchedule, SolverOptions
from recognition.parall_module import ParallModule
from recognition.plan_check import make_plan
from recognition.settings import complete
from symbols import get_backbone


def train(cfg, contexts, collective, num_steps=2):
    solver = SolverOptions(MultiStepSchedule(cfg.lr), cfg.mom, cfg.wd)
    backbone = build_backbone(cfg, get_backbone, contexts, solver, collective)
    module = ParallModule(backbone, build_head(cfg, backbone.embedding_size, contexts, collective), solver)
    rng, rows = np.random.RandomState(0), cfg.per_batch_size * len(contexts)
    height, width, channels = cfg.image_shape
    for step in range(num_steps):
        images = mx.nd.array(rng.randint(0, 256, (rows, channels, height, width)), dtype='uint8')
        labels = mx.nd.array(rng.randint(0, cfg.num_classes, rows), dtype='int64')
        module.train_step(mx.io.DataBatch([images], [labels]), measure=step > 0)
        mx.nd.waitall()


def main():
    given = json.loads(sys.argv[1])
    num_devices = given.pop('num_devices', 1)
    presets = config.generate_config(given.pop('network'), 'emore', 'arcface')
    cfg = complete(dict(presets, **given))
    cfg.image_shape = cfg.image_shape or [112, 112, 3]
    alone = LocalCollective()
    devices = [('cpu', number) for number in range(num_devices)]
    plan = make_plan(cfg, get_backbone, devices, alone)
    mx.nd.ones((2,)).asnumpy()
    before = resident('VmRSS')
    train(cfg, [mx.Context(*device) for device in devices], alone)
    print(json.dumps({'planned': plan.need, 'measured': resident('VmHWM') - before}))


if __name__ == '__main__':
    main()
