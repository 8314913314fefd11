"""Make the reference values of tests/nn/test_recurrent.py, once, with torch in an environment of its own.

    python -m venv /tmp/reference
    /tmp/reference/bin/pip install torch==2.13.0 numpy
    /tmp/reference/bin/python tests/golden/recurrent/make.py

`torch.npz` has, for torch.nn.RNN, LSTM and GRU with two layers in both directions: random parameters, inputs of three
lengths, the outputs, the last states, and gradients. All sizes differ.
"""

import pathlib

import numpy as np
import torch

INPUTS, HIDDEN, LAYERS, LENGTHS = 5, 4, 2, (6, 3, 1)
MODULES = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}


def main():
    arrays = {}
    for seed, (name, module) in enumerate(MODULES.items()):
        torch.manual_seed(seed)
        model = module(INPUTS, HIDDEN, LAYERS, batch_first=True, bidirectional=True)
        with torch.no_grad():  # PyTorch's own range, +-0.5, leaves the gates nearly linear
            for parameter in model.parameters():
                parameter.normal_()
        x = torch.randn(len(LENGTHS), max(LENGTHS), INPUTS, requires_grad=True)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True)
        outputs, last = model(packed)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
        # A loss that weights every number of outputs and last states differently.
        parts = [y, *(last if isinstance(last, tuple) else (last,))]
        sum((part * torch.arange(part.numel()).reshape(part.shape).cos()).sum() for part in parts).backward()
        arrays |= {f"{name}/x": x, f"{name}/y": y, f"{name}/gradient/x": x.grad}
        arrays |= {f"{name}/last/{i}": part for i, part in enumerate(parts[1:])}
        for key, parameter in model.named_parameters():
            arrays |= {f"{name}/parameter/{key}": parameter, f"{name}/gradient/{key}": parameter.grad}
    arrays = {key: array.detach().numpy().astype(np.float32) for key, array in arrays.items()}
    np.savez_compressed(pathlib.Path(__file__).parent / "torch.npz", lengths=np.array(LENGTHS), **arrays)


if __name__ == "__main__":
    main()
