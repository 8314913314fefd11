"""Checkpoints and work directories: Orbax behind one small interface.

A checkpoint is a self-contained folder: it is enough to evaluate, generate and resume, on any number of devices.

    WORKDIR/checkpoints/STEP/
      state/, ...       the arrays of the training state: STEP is an Orbax checkpoint, `ocp.load(STEP)` reads it
      record.json       config, corpus hash, library versions, metrics, and a checksum per array
      tokenizer.model   and other side files
      SHA256SUMS        sha256 of every other file in the folder

| module      | holds                                                                           |
|-------------|---------------------------------------------------------------------------------|
| `store`     | `CheckpointStore`: save, restore, retention; most callers need only this module |
| `locate`    | `open_checkpoint`: the store and the step for the path that a user types        |
| `averaging` | `average_params`: the mean of the parameters of several checkpoints             |
| `workdir`   | `open_workdir`: config.json and the lock of a work directory                    |
| `manifest`  | the files beside the arrays, and the detection of damage                        |
| `checksums` | one number per array that is the same for every sharding                        |
| `orbax_io`  | every call into Orbax                                                           |
| `retention` | the rule that decides which checkpoints are kept                                |
| `folders`   | names of complete, unfinished, damaged and deleted checkpoints                  |

To resume a run, `training.resume.restore_newest` calls `CheckpointStore.restore`. To evaluate and generate,
`evaluation.loading.load` calls `CheckpointStore.restore_parts`. To start a new run from the parameters of another, use
`training.init_from`.

This module imports nothing, so that importing `workdir` does not import Orbax.
"""
