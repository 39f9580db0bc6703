"""A checked configuration -> the parts of a training. Below this file nobody sees a configuration."""
import filecmp
import functools
import logging
import math
import os
from types import SimpleNamespace

from common.label_table import folders
from common.sequential_set import find_parts
from common.verification import load_bin
from recognition.agreement import all_or_none, facts_of, require_agreement
from recognition.backbone import Backbone
from recognition.batch_decoder import MAX_THREADS, usable_cores
from recognition.build_symbol import build_symbol, training_symbol
from recognition.checkpoint import CheckpointRule, Checkpoints
from recognition.devices import has_half_products
from recognition.image_iter import get_face_image_iter
from recognition.loss_scale import make_loss_scale
from recognition.margin import AdaFaceMargin, ElasticMargin, Margin
from recognition.optimizer import SolverOptions, make_schedule
from recognition.parall_module import Head, ParallModule
from recognition.plan_check import settle_memory
from recognition.pretrained import take_pretrained
from recognition.pretrained_head import PretrainedHead, start_new_centers_from_images
from recognition.product import HalfProduct, Product
from recognition.recorder import make_recorder
from recognition.resume import check_same_training, resume
from recognition.signals import Stop
from recognition.state_folder import StateFolder
from recognition.trainer import Trainer, TrainerOptions
from recognition.training_state import SaveRule, StateSaver
from recognition.validation import Validator

log = logging.getLogger('shardface')

CKPT_EVERY = '30m'


def build_trainer(cfg, get_backbone, contexts, prefix, collective, began=None):
    """cfg: complete configuration with dataset found; get_backbone: family name -> builder of its symbol.

    The Trainer goes on from a training state if cfg.resume says so. began: when max_minutes began, of time.monotonic.
    UserError, in all processes, if one cannot read its data or differs from the others.
    """
    train_iter = all_or_none(collective, lambda: build_iter(cfg, len(contexts), collective), 'reader')
    cfg.num_classes = train_iter.num_classes
    targets = all_or_none(collective, lambda: load_targets(cfg), 'targets')
    folder = StateFolder('%s-state' % prefix, cfg.keep, collective)
    found = all_or_none(collective, lambda: find_state(folder, cfg), 'state')
    require_agreement(collective, facts_of(cfg, len(contexts), train_iter, data_files(cfg), targets, found))
    if found:
        cfg.pretrained, cfg.pretrained_head, cfg.new_centers = '', '', 'random'         # taken long ago
    old_head = all_or_none(collective, lambda: find_old_head(cfg), 'pretrained_head')
    plan = all_or_none(collective, lambda: settle_memory(cfg, get_backbone, contexts, collective), 'memory')
    solver = build_solver(cfg, train_iter.batches_per_epoch)
    backbone = build_backbone(cfg, get_backbone, contexts, solver, collective)
    head = build_head(cfg, backbone.embedding_size, contexts, collective)
    start_centers(cfg, backbone, head, train_iter, old_head)
    log.info('%s: embedding of %d numbers; %d classes in shards of %s', cfg.network, backbone.embedding_size,
             head.num_classes, ', '.join(str(shard.num_classes) for shard in head.shards))
    checkpoints = Checkpoints(prefix, build_symbol(cfg, get_backbone), CheckpointRule(cfg.ckpt))
    validator = Validator(targets, cfg.image_shape[:2])
    options = trainer_options(cfg)
    stop = Stop(60 * cfg.max_minutes or math.inf, began, collective=collective)
    every = (CKPT_EVERY if cfg.ckpt else 0) if cfg.ckpt_every is None else cfg.ckpt_every
    saver = StateSaver(folder, SaveRule(every), cfg, stop)
    module = ParallModule(backbone, head, solver, cfg.freeze_backbone)
    trainer = Trainer(module, train_iter, validator, checkpoints, options, saver, stop)
    if found:
        resume(trainer, found, cfg)
    saver.begin(trainer, found)
    trainer.recorder = all_or_none(collective, lambda: make_recorder(cfg, prefix, trainer, plan), 'recorder')
    return trainer


def build_iter(cfg, num_devices, collective):
    height, width, channels = cfg.image_shape
    threads = cfg.data_threads or max(1, min(MAX_THREADS, usable_cores() // collective.local_size))
    options = SimpleNamespace(**dict(cfg, batch_size=cfg.per_batch_size * num_devices, data_threads=threads,
                                     rank=collective.rank, world_size=collective.world_size))
    paths = [os.path.join(folder, 'train.rec') for folder in folders(cfg.dataset_path)]
    return get_face_image_iter(options, (channels, height, width), paths)


def trainer_options(cfg):
    return TrainerOptions(cfg.frequent, cfg.verbose, cfg.max_steps, cfg.end_epoch, cfg.accumulate)


def build_solver(cfg, batches_per_epoch):
    """SolverOptions. cfg.lr_total gets the number that None stands for, so that a state says what it was."""
    if cfg.lr_policy != 'steps' and cfg.lr_total is None:
        total = trainer_options(cfg).total_steps(batches_per_epoch)
        cfg.lr_total = total if math.isfinite(total) else None
    schedule = make_schedule(cfg.lr_policy, cfg.lr, cfg.lr_steps, cfg.warmup, cfg.lr_total or math.inf, cfg.lr_power)
    return SolverOptions(schedule, cfg.mom, cfg.wd, cfg.fc7_lr_mult, cfg.fc7_wd_mult, cfg.clip_norm)


def build_backbone(cfg, get_backbone, contexts, solver, collective):
    height, width, channels = cfg.image_shape
    backbone = Backbone(training_symbol(cfg, get_backbone, contexts[0].device_type), contexts,
                        cfg.per_batch_size * len(contexts), (channels, height, width), cfg.seed, collective,
                        cfg.accumulate)
    if cfg.pretrained:
        take_pretrained(backbone, cfg.pretrained, cfg.pretrained_epoch)
    backbone.take_first()
    backbone.init_optimizer(solver, cfg.kvstore, make_loss_scale(cfg.fp16_scale))
    return backbone


def build_margin(cfg):
    """The margin of a loss; None for the plain inner product."""
    if cfg.loss_name == 'softmax':
        return None
    if cfg.loss_name == 'adaface':
        return AdaFaceMargin(cfg.loss_ada_m, cfg.loss_ada_h, cfg.loss_s, cfg.loss_ada_mom)
    fixed = cfg.loss_m1, cfg.loss_m2, cfg.loss_m3, cfg.loss_s
    if cfg.loss_m2_std or cfg.loss_m3_std:
        return ElasticMargin(*fixed, m2_std=cfg.loss_m2_std, m3_std=cfg.loss_m3_std, seed=cfg.seed)
    return Margin(*fixed)


def build_head(cfg, embedding_size, contexts, collective):
    margin = build_margin(cfg)
    return Head.initial(cfg.num_classes, embedding_size, contexts, margin, cfg.seed, collective,
                        block_size=cfg.head_block_size, with_bias=margin is None and not cfg.fc7_no_bias,
                        sample_ratio=cfg.sample_ratio, keep_logits=cfg.head_memory != 'lean',
                        sub_centers=cfg.sub_centers, interclass_filter=cfg.interclass_filter,
                        product=make_product(cfg, contexts), fp16_exchange=cfg.fp16_exchange,
                        label_smoothing=cfg.label_smoothing)


def find_old_head(cfg):
    """PretrainedHead, None without pretrained_head. UserError."""
    if not cfg.pretrained_head:
        return None
    return PretrainedHead(cfg.pretrained_head, cfg.pretrained_epoch, cfg.class_map, cfg.num_classes)


def start_centers(cfg, backbone, head, train_iter, old_head):
    """Give the classes the centers that fine-tuning starts from."""
    if old_head:
        all_or_none(head.collective, lambda: old_head.fill(head), 'old_centers')
    if cfg.new_centers == 'mean':
        start_new_centers_from_images(backbone, head, train_iter, old_head and old_head.map)


def make_product(cfg, contexts):
    """The kind of matrix products that the classification layer computes with."""
    if not cfg.fp16:
        return Product
    return functools.partial(HalfProduct, native=has_half_products(contexts[0].device_type))


def find_state(folder, cfg):
    """What StateFolder.find found, None for a fresh start. UserError if it is of another training."""
    found = folder.find(cfg.resume)
    if found:
        check_same_training(found, cfg)
    return found


def data_files(cfg):
    """Paths of the training files, which all processes must have alike."""
    files = []
    for path_imgrec in [os.path.join(folder, 'train.rec') for folder in folders(cfg.dataset_path)]:
        files += find_parts(path_imgrec) if cfg.is_shuffled_rec else [path_imgrec, path_imgrec[:-3] + 'idx']
    return files


def load_targets(cfg):
    """The verification sets of val_targets that are there, in the first folder that has one; the others are named in
    the log.
    """
    found, missing = [], []
    for name in cfg.val_targets:
        paths = [os.path.join(folder, name + '.bin') for folder in folders(cfg.dataset_path)]
        there = [path for path in paths if os.path.isfile(path)]
        found += there[:1]
        missing += [] if there else paths
        for path in there[1:]:
            if not filecmp.cmp(there[0], path, shallow=False):
                log.warning('%s and %s differ: verification is on the first', there[0], path)
    if missing:
        log.warning('no verification on %s: not there', ', '.join(missing))
    return [load_bin(path) for path in found]
