"""Images -> embeddings: one copy of the network per device, kept equal by Module."""
import json

import numpy as np

from common.errors import UserError
from common.mxnet_loader import mx
from recognition.collective import LocalCollective
from recognition.loss_scale import all_finite

SEED_STRIDE = 1000003                # steps of neighbouring seeds are far from each other
PART = 1 << 20                       # numbers of a gradient that are summed at a time to measure it


class FloatXavier(mx.init.Xavier):
    """Xavier's normal numbers for residual networks, drawn in float32 whatever the weight's type is, so that a
    half precision run starts from the rounded weights of the float32 run with its seed."""

    def __init__(self):
        super().__init__(rnd_type='gaussian', factor_type='out', magnitude=2)

    def _init_weight(self, name, arr):
        drawn = mx.nd.zeros(arr.shape, ctx=arr.context)
        super()._init_weight(name, drawn)
        arr[:] = drawn


class Backbone:
    """B images per step over all contexts of this process; each context takes B / len(contexts).

    With several processes their gradients are summed, and those of rank 0 are the initial parameters of all.
    """

    def __init__(self, symbol, contexts, batch_size, image_shape, seed, collective=None, accumulate=1):
        """symbol: images 'data' -> embedding; image_shape (3, H, W); seed of the initial weights.

        collective: None for one process. accumulate: backward passes whose gradients one update sums up.
        """
        self.collective = collective or LocalCollective()
        if batch_size % len(contexts):
            raise UserError('a batch of %d images cannot be divided over %d devices: change per_batch_size'
                            % (batch_size, len(contexts)))
        self.batch_size, self.image_shape, self.contexts = batch_size, tuple(image_shape), contexts
        self._accumulates = accumulate > 1
        self._module = mx.mod.Module(symbol, data_names=('data',), label_names=None, context=contexts)
        images = mx.io.DataDesc('data', (batch_size,) + self.image_shape, dtype='uint8')
        self._module.bind(data_shapes=[images], for_training=True, grad_req='add' if accumulate > 1 else 'write')
        mx.random.seed(seed)
        self._module.init_params(FloatXavier())
        self._seed = seed if 'Dropout' in operators(symbol) else None
        self._parts = {}                     # dtype -> two arrays, for _summed

    @property
    def embedding_size(self):
        return self._module.output_shapes[0][1][1]

    def init_optimizer(self, solver, kvstore='device', loss_scale=None):
        """SGD with momentum. loss_scale: of half precision, with float32 master weights; None for float32.

        Called again, it begins with zero momentum and the present parameters.
        """
        self.loss_scale, self._optimizer_arguments = loss_scale, (solver, kvstore, loss_scale)
        self._clip_norm = solver.clip_norm
        self._module.init_optimizer(force_init=True, kvstore=kvstore, optimizer='sgd', optimizer_params={
            'learning_rate': solver.schedule.base_lr, 'lr_scheduler': solver.schedule,
            'momentum': solver.momentum, 'wd': solver.wd, 'rescale_grad': 1.0,
            'multi_precision': loss_scale is not None})

    def seed_dropout(self, num_update, part=0, num_parts=1):
        """What a step drops is a function of the seed, its number and the device: a resumed run drops the same."""
        if self._seed is not None:
            part = (num_update * num_parts + part) * self.collective.world_size + self.collective.rank
            for device, context in enumerate(self.contexts):
                mx.random.seed((self._seed * SEED_STRIDE + part * len(self.contexts) + device) % 2**31, ctx=context)

    def forward(self, images, is_train=True):
        """images (B, 3, H, W) uint8 -> embedding (B, D) float32 on the first context."""
        self._module.forward(mx.io.DataBatch(data=[images]), is_train=is_train)
        return self._module.get_outputs()[0]

    def backward(self, d_embedding, first=True):
        """d_embedding (B, D) float32: gradient of the loss for this process's embeddings, without loss scale.

        first: of the passes of an update; with accumulate = 1 each is.
        """
        if first and self._accumulates:
            for array in sum(self._module._exec_group.grad_arrays, []):
                array[:] = 0
        if self.loss_scale is not None:
            self._module._optimizer.rescale_grad = 1.0 / self.loss_scale.value
            d_embedding = d_embedding * self.loss_scale.value
        self._module.backward([d_embedding])

    def update(self, num_update, measure=False):
        """Sum the gradients over devices and processes and take the SGD step of that number, with its learning rate.

        With measure -> length (1,) of the gradient of all parameters, without loss scale, before it is clipped.
        With solver.clip_norm, a gradient that is longer is made that long; this waits for the devices.
        In half precision a step whose gradients overflowed is skipped, see recognition/loss_scale.py; UserError after
        too many of them.
        """
        gradients = self._sum_over_processes()
        unscaled = 1.0 if self.loss_scale is None else 1.0 / self.loss_scale.value    # accept() may change it
        norm = self._length(gradients) if measure or self._clip_norm else None
        if self.loss_scale is not None:
            finite = all_finite(gradients)
            if not self.loss_scale.accept(finite, num_update):
                self._module._params_dirty = True              # the running statistics have moved all the same
                return norm
        if self._clip_norm:
            self._module._optimizer.rescale_grad = unscaled * clip_factor(float(norm.asscalar()), self._clip_norm)
        self._module._optimizer.num_update = num_update        # skipped steps count, as for the class centers
        self._module.update()
        return norm

    def _length(self, gradients):
        """Length (1,) of what _sum_over_processes gives, without loss scale."""
        squares = [mx.nd.multi_sum_sq(part.astype('float32', copy=False), num_arrays=1)
                   for copies in gradients for part in self._summed(copies)]
        length = mx.nd.sqrt(mx.nd.add_n(*squares))
        return length if self.loss_scale is None else length / self.loss_scale.value

    def _summed(self, copies):
        """Yield the sum of one gradient over the devices, in parts, one after the other in the same memory."""
        first, *others = [array.reshape((-1,)) for array in copies]
        if not others:
            yield first
            return
        if first.dtype not in self._parts:
            self._parts[first.dtype] = [mx.nd.empty((PART,), ctx=first.context, dtype=first.dtype) for _ in range(2)]
        for start in range(0, first.size, PART):
            size = min(PART, first.size - start)
            total, term = (part[:size] for part in self._parts[first.dtype])
            first[start:start + size].copyto(total)
            for other in others:
                other[start:start + size].copyto(term)
                mx.nd.elemwise_add(total, term, out=total)
            yield total

    def _sum_over_processes(self):
        """-> per parameter the list of gradients that are still to be summed. Nothing here waits.

        With several processes the first device gets the sum over all devices of all processes, the others get 0.
        Each sum begins as soon as the backward pass has left the gradient.
        """
        gradients = self._module._exec_group.grad_arrays
        if self.collective.world_size == 1:
            return gradients
        for total, *others in gradients:
            for other in others:
                total += other.as_in_context(total.context)
                other[:] = 0
        totals = [copies[0] for copies in gradients]
        self.collective.allreduce_sum(totals, 'gradients')
        return [[total] for total in totals]

    @property
    def embed_batch_size(self):
        """Images of one call of embed()."""
        return self.batch_size * self.collective.world_size

    def embed(self, images):
        """images (B * world_size, 3, H, W) uint8 NumPy, the same in all processes -> embedding of all, NumPy.

        Each process computes its B rows. Nothing is trained.
        """
        own = images[self.collective.rank * self.batch_size:][:self.batch_size]
        embedding = self.forward(mx.nd.array(own, dtype='uint8'), is_train=False)
        return self.collective.allgather(embedding, 'embeddings').asnumpy()

    def parameters(self):
        """(arg_params, aux_params) on the host. Running statistics are averaged over the devices."""
        self.settle()
        return self._module.get_params()

    @staticmethod
    def settle():
        """Wait for the last step. Batch norm updates its running statistics in the backward pass, and MXNet 1.9.1 does
        not know that who reads them has to wait for it.
        """
        mx.nd.waitall()

    def set_parameters(self, arg_params, aux_params):
        """Set every parameter, on every device."""
        self._module.set_params(arg_params, aux_params)

    def average_statistics(self):
        """Give every device of every process their mean running statistics: what is evaluated is what is saved."""
        self.settle()
        if len(self.contexts) * self.collective.world_size == 1:
            return
        parameters, statistics = self.parameters()
        self.collective.allreduce_sum(statistics.values(), 'running_statistics')
        for array in statistics.values():
            array /= self.collective.world_size
        self.set_parameters(parameters, statistics)

    def take_first(self):
        """Take the parameters of rank 0."""
        parameters, statistics = self.parameters()
        self.collective.broadcast([*parameters.values(), *statistics.values()], 'parameters')
        self.set_parameters(parameters, statistics)

    @property
    def num_parameters(self):
        return sum(copies[0].size for copies in self._module._exec_group.param_arrays)

    def training_arrays(self):
        """Yield (name, NumPy float32 array) of all that training changes, one copy at a time:

        weight/NAME, of half precision the master weight; momentum/NAME; statistics/DEVICE/NAME, running
        statistics of all devices of all processes. All processes take all of them: they exchange the statistics.
        """
        self.settle()
        group = self._module._exec_group
        for index, name in enumerate(group.param_names):
            momentum, master = self._optimizer_state(index, name)
            weight = group.param_arrays[index][0] if master is None else master
            yield 'weight/' + name, weight.asnumpy().astype(np.float32, copy=False)
            yield 'momentum/' + name, np.zeros(weight.shape, np.float32) if momentum is None else momentum.asnumpy()
        for name, copies in zip(group.aux_names, group.aux_arrays):
            own = np.stack([array.asnumpy().astype(np.float32, copy=False) for array in copies])
            for device, array in enumerate(self.collective.allgather(own, 'saved_statistics')):
                yield 'statistics/%d/%s' % (device, name), array

    def _optimizer_state(self, index, name):
        """(momentum, master weight) of a parameter as MXNet's optimizer keeps them, None for what it does not have."""
        updater, keys = self._updater(index, name)
        state = updater.states.get(keys[0])
        return state if isinstance(state, tuple) else (state, None)

    def _updater(self, index, name):
        """(MXNet's Updater, keys of a parameter in it, one per copy that it updates)."""
        module, count = self._module, len(self.contexts)
        if module._update_on_kvstore:
            return module._kvstore._updater, [name]
        return module._updater, [index * count + device for device in range(count)]

    def restore(self, arrays):
        """Take over training_arrays(), a dict. UserError unless they are of the same network.

        On another number of devices each one gets the mean of the running statistics.
        """
        group = self._module._exec_group
        saved = {key[len('weight/'):]: arrays[key].shape for key in arrays if key.startswith('weight/')}
        own = {name: copies[0].shape for name, copies in zip(group.param_names, group.param_arrays)}
        if saved != own:
            name = sorted(set(saved.items()) ^ set(own.items()))[0][0]
            raise UserError('the training state is of another network: %s is %s in it, %s is needed'
                            % (name, saved.get(name, 'not there'), own.get(name, 'none')))
        self._restore_weights(arrays)
        self._restore_statistics(arrays)

    def _restore_weights(self, arrays):
        parameters, statistics = self.parameters()
        for name, array in parameters.items():
            parameters[name] = mx.nd.array(arrays['weight/' + name], dtype=np.float32).astype(array.dtype)
        self.set_parameters(parameters, statistics)
        self.init_optimizer(*self._optimizer_arguments)
        for index, name in enumerate(self._module._exec_group.param_names):
            updater, keys = self._updater(index, name)
            for key in keys:
                momentum = mx.nd.array(arrays['momentum/' + name]) if updater.optimizer.momentum else None
                master = mx.nd.array(arrays['weight/' + name])
                is_half = parameters[name].dtype == np.float16
                updater.states[key] = (momentum, master) if is_half else momentum
                updater.states_synced[key] = False             # goes to its device at the first update

    def _restore_statistics(self, arrays):
        group, count, rank = self._module._exec_group, len(self.contexts), self.collective.rank
        num_saved = len({key.split('/')[1] for key in arrays if key.startswith('statistics/')})
        for name, copies in zip(group.aux_names, group.aux_arrays):
            saved = [arrays['statistics/%d/%s' % (device, name)] for device in range(num_saved)]
            for device, array in enumerate(copies):
                same = num_saved == count * self.collective.world_size
                array[:] = saved[rank * count + device] if same else np.mean(saved, axis=0)
        self._module._params_dirty = True


def clip_factor(length, clip_norm):
    """What a gradient of that length is multiplied by, so that it is at most clip_norm long [arXiv:1211.5063, 3.2]."""
    return clip_norm / length if length > clip_norm else 1.0


def operators(symbol):
    """Names of the operators in a symbol."""
    return {node['op'] for node in json.loads(symbol.tojson())['nodes']}
