"""Checkpoints and work directories: Orbax behind one small interface.

A checkpoint is a folder that is enough by itself to evaluate, generate and resume, on another number of devices too:

    WORKDIR/checkpoints/STEP/
      state/, ...       the arrays of the training state: STEP is an Orbax checkpoint, `ocp.load(STEP)` reads it
      record.json       config, corpus hash, library versions, metrics, and a checksum per array
      tokenizer.model   and other side files
      SHA256SUMS        of every other file in the folder

| module      | holds                                                                  |
|-------------|------------------------------------------------------------------------|
| `store`     | `CheckpointStore`: save, restore, retention; the only module most need |
| `opening`   | `open_checkpoint`: from what a user types to a store and a step        |
| `averaging` | `average_params`: the mean of the parameters of several checkpoints    |
| `workdir`   | `open_workdir`: config.json and the lock of a work directory           |
| `manifest`  | what lies beside the arrays, and how damage is found                   |
| `checksums` | one number per array that is the same for every sharding               |
| `orbax_io`  | every call into Orbax                                                  |
| `retention` | which checkpoints stay                                                 |
| `folders`   | names of complete, unfinished, damaged and deleted checkpoints         |

A run resumes by `training.resume.restore_newest`, which calls `CheckpointStore.restore`; evaluation and generation
load parameters by `evaluation.loading.load`, which calls `CheckpointStore.restore_params`; a new run starts from the
parameters of another by `training.init_from`.

This package module imports nothing, so that `workdir` does not pay for importing Orbax.
"""
