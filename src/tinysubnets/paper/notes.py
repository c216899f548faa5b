"""Footnotes: how to read the paper's numbers, and how ours were counted."""

from __future__ import annotations

_MEAN = "Ours: mean ± standard deviation (number of runs); the paper: mean of 5 runs."

ACCURACY = (
    _MEAN,
    "Naive, CWRStar, SI, Replay and Cumulative have one head in the paper and do not know the "
    "task (its Cumulative at 36.52 under PackNet at 72.57 says so); the other rows know it. "
    "Over the tasks' own classes that is class-IL; the tasks of p-MNIST share their ten "
    "classes, so there it is domain-IL (with 100 classes Naive could not have 60.12: it "
    "knows the last task's alone).",
    "A is the mean of the lower triangle of the accuracy matrix (Díaz-Rodríguez et al.), ACC "
    "the mean of its last row; without forgetting both agree up to the order of tasks.",
    "Ours without the task: the models of the same runs, when the task of an input is not told. "
    "Methods with masks find it by asking all tasks' networks; class-IL counts task and class, "
    "domain-IL the label alone. By entropy: the same networks, and the one with the least entropy "
    "answers, as in SupSup; class-IL, or domain-IL where classes are the same. AUROC: inputs of a "
    "task that is no candidate against those of the others. The paper has no such numbers of them.",
    "The paper also quotes NPCL (95.97 p-MNIST, 71.34 CIFAR, 60.18 Tiny) and QDI (88.30 CIFAR "
    "with 20 × 5, 66.79 Tiny with 10 × 20): other settings.",
)

CAPACITY = (
    _MEAN,
    "Paper view: codes + codebooks + masks + task-specific parameters (+ samples where kept) over "
    "32·|Θ|, heads left out, as in the paper, whose networks have no other such parameters.",
    "Printed: the paper's CAP_t by its letter: one codebook per layer for all tasks, and one bit "
    "of mask for each weight in use, whatever the number of tasks. No file can be as small.",
    "File: bytes of the saved model over 4·|Θ|, heads, normalization and metadata counted.",
    "* two banks without replay samples.",
)

IMAGENET100 = (
    _MEAN,
    "Parameters are file bytes / 4.",
    "DyTox and DER are quoted by the paper: CIFAR-100 numbers from DyTox's table, "
    "class-IL averages; that DER is the dynamically expandable one, not dark "
    "experience replay. Not run here.",
)

MEMORY = (
    _MEAN,
    "The paper's weight shares do not follow from its sparsities and bit-widths (CIFAR: 5.49 "
    "stated, 11.0 derived).",
    "Ours: codes, codebooks and masks as they stand in the file.",
)

SPARSITY = (
    _MEAN,
    "Υ is the share of weights not owned by any task, size-weighted and normalized to [0, 1]; "
    "the paper prints an unnormalized sum.",
    "Ours after: at the end, over all banks; before: that less what the post-pruning of all tasks "
    "has freed, also where later tasks own it again. Bits: mean over tasks. –: tasks are "
    "differences to others or networks of their own, which own no weights in common.",
)

BITS = (
    _MEAN,
    "Only runs with a fixed bit-width (tsn.bits = 3, 4 or 5) count here.",
)

TIMES = (
    _MEAN,
    "The paper: one A100, 200 epochs per task. Ours: the device and epochs of the run.",
    "Published runs shared their machine with others, as many as the device's column says where "
    "that was recorded: alone they would be faster. Do not set these seconds beside the A100's; "
    "the README has times of runs alone.",
)

POST_PRUNING = (
    _MEAN,
    "The paper's table says 100 iterations, its text 50; ours as shown.",
    "Paper view and file as in Table 1. With replay memory: TSN with its task memory, samples "
    "or statistics as shown. * two banks without replay samples. Runs without post-pruning, as "
    "by most `best/*`, are in no line but the first.",
)

OPERATIONS = (
    'The paper\'s convention: 4 : 8 : 16 bits = 1 : 4 : 16, float = 9 to 9.5 × 8 bits, "+ p" = '
    "× (1 − Υ). Ours in that convention: multiply-adds of the dense layers × 64 for 8 bits, "
    "float = 9 × that, Υ of the run.",
    'Counted: multiply-adds × weight bits × activation bits, from the real layers; "+ p" with '
    "the density of each task's own mask, mean over tasks. Float is not counted in bits: "
    "multiply-adds are shown instead. –: a run without Υ, see Table 5.",
    "The paper's absolute numbers do not follow from the layers: its p-MNIST 8-bit count is "
    "72.7 per multiply-add of the network.",
)

FIXED_POINT = (
    _MEAN,
    "Ours: what enters each layer with a weight matrix, and the matrix (its centers), in "
    "fixed point with one power of two per tensor, chosen on validation data; sums, biases "
    "and normalization in float32.",
)

TRANSFER = (
    _MEAN,
    "FWT is the mean accuracy above the diagonal, class index against class index also where "
    "tasks have other classes; compare it with chance (1 / classes).",
)

MATRIX = (
    "The paper shows its matrices as pictures only; its text says that they are constant down "
    "each column, and that ImageNet100 runs from 68.9 (task 5) to 83.8 (task 7).",
    "Ours: % on test data, every cell measured anew; above the diagonal a task's network on "
    "tasks it has not seen; – where classes differ.",
)

MASKS = (
    "The paper shows masks as pictures only: (a) disjoint values, (b) value-based sharing.",
    "Used: share of all shared weights in the task's mask. New: share it was the first to "
    "use. Reused: share of its mask that earlier tasks own. Bank –: a difference to an earlier "
    "task. Not kept: published before results had these shares, without the model.",
)

CASE_STUDY = (
    "Ours by Σ new·ψ + 2^ψ·(32 + ψ); the formula that the paper prints gives 296 for its "
    "first step.",
)
