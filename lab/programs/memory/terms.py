"""What the terms of a step's peak memory are called: by id in code and JSON, by label in reports. Imports no JAX."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum, auto


class MemoryTerm(StrEnum):
    """One part of what a device holds at the fullest moment of a decoder's step, `lab.programs.memory.peak`."""

    ARGUMENTS = auto()
    SAVED_ACTIVATIONS = auto()
    SAVED_WEIGHTS = auto()
    WEIGHTS_RELAYOUT = auto()
    SCORES_AND_PROBABILITIES = auto()
    ATTENTION_MASK = auto()
    LOGITS = auto()
    HEAD_WEIGHTS_IN_USE = auto()
    LOGITS_GRAD = auto()
    HEAD_INPUT = auto()
    HEAD_GRAD = auto()
    EMBEDDING_GRAD_ZEROS = auto()
    EMBEDDING_AND_HEAD_GRADS = auto()
    SCORES_RELAYOUT = auto()
    LAYERS_GRADS = auto()
    ACCUMULATED_GRADS = auto()
    LAYER_GRADS_UNSCATTERED = auto()
    LAYER_ACTIVATIONS = auto()
    LAYER_WEIGHTS_IN_USE = auto()
    NEXT_LAYER_WEIGHTS = auto()
    SCORES_AND_GRADS = auto()
    SAVED_PROBABILITIES = auto()
    GATHERED_RESIDUALS_AND_GRADS = auto()
    TILE_SCORES_AND_GRADS = auto()
    QUERIES_AND_OUTPUTS_RELAYOUT = auto()
    QUERY_GRADS_F32 = auto()
    KEYS_AND_VALUES = auto()
    KEY_AND_VALUE_GRADS_F32 = auto()
    RESIDUALS_AND_MLP_ACTIVATIONS = auto()
    GATHERED_NEW_WEIGHTS = auto()
    OPTIMIZER_STATE_RELAYOUT = auto()
    STASHED_INPUTS = auto()
    STASHED_COTANGENTS = auto()
    STASHED_HALVES = auto()
    HALF_TAKEN_AND_LEFT = auto()
    LAYER_HALF = auto()
    MESSAGES = auto()
    CHUNK_WEIGHTS = auto()
    LAYER_WEIGHTS = auto()
    TARGETS_MASK = auto()
    EMBEDDING_GRAD = auto()
    FURTHER_GRADS = auto()


LABELS: dict[str, str] = {
    MemoryTerm.ARGUMENTS: "arguments",
    MemoryTerm.SAVED_ACTIVATIONS: "activations kept",
    MemoryTerm.SAVED_WEIGHTS: "weights kept as used",
    MemoryTerm.WEIGHTS_RELAYOUT: "weights as gathers or experts read them",
    MemoryTerm.SCORES_AND_PROBABILITIES: "one layer's scores and probabilities",
    MemoryTerm.ATTENTION_MASK: "the mask of all scores",
    MemoryTerm.LOGITS: "logits",
    MemoryTerm.HEAD_WEIGHTS_IN_USE: "head as used",
    MemoryTerm.LOGITS_GRAD: "gradient of the logits",
    MemoryTerm.HEAD_INPUT: "what the head read",
    MemoryTerm.HEAD_GRAD: "gradient of the head",
    MemoryTerm.EMBEDDING_GRAD_ZEROS: "embedding's gradient, still zero",
    MemoryTerm.EMBEDDING_AND_HEAD_GRADS: "whole gradients of embedding and head",
    MemoryTerm.SCORES_RELAYOUT: "scores in a second layout",
    MemoryTerm.LAYERS_GRADS: "gradients of the layers",
    MemoryTerm.ACCUMULATED_GRADS: "gradients added up over micro-batches",
    MemoryTerm.LAYER_GRADS_UNSCATTERED: "one layer's gradients before they are scattered",
    MemoryTerm.LAYER_ACTIVATIONS: "one layer's tensors",
    MemoryTerm.LAYER_WEIGHTS_IN_USE: "one layer's weights as used",
    MemoryTerm.NEXT_LAYER_WEIGHTS: "the next layer's, gathered ahead",
    MemoryTerm.SCORES_AND_GRADS: "one layer's scores and their gradients",
    MemoryTerm.SAVED_PROBABILITIES: "probabilities that wait for the values' gradients",
    MemoryTerm.GATHERED_RESIDUALS_AND_GRADS: "gathered streams and their gradients",
    MemoryTerm.TILE_SCORES_AND_GRADS: "scores of a tile and their gradients",
    MemoryTerm.QUERIES_AND_OUTPUTS_RELAYOUT: "queries and outputs in layouts of products",
    MemoryTerm.QUERY_GRADS_F32: "queries' gradients in float32",
    MemoryTerm.KEYS_AND_VALUES: "keys and values",
    MemoryTerm.KEY_AND_VALUE_GRADS_F32: "keys' and values' gradients in float32",
    MemoryTerm.RESIDUALS_AND_MLP_ACTIVATIONS: "streams, and the MLP's tensors until their weights' gradients are made",
    MemoryTerm.GATHERED_NEW_WEIGHTS: "new weights of one stack, whole",
    MemoryTerm.OPTIMIZER_STATE_RELAYOUT: "new master weights and moments, before they are resharded",
    MemoryTerm.STASHED_INPUTS: "inputs of micro-batches in flight",
    MemoryTerm.STASHED_COTANGENTS: "gradients of outputs that wait",
    MemoryTerm.STASHED_HALVES: "what split backwards keep for gradients of weights",
    MemoryTerm.HALF_TAKEN_AND_LEFT: "one of these, as a job takes it or leaves it",
    MemoryTerm.LAYER_HALF: "one layer's part of it",
    MemoryTerm.MESSAGES: "messages between stages",
    MemoryTerm.CHUNK_WEIGHTS: "weights of one chunk, cut out of all",
    MemoryTerm.LAYER_WEIGHTS: "weights of one layer, cut out for its branch",
    MemoryTerm.TARGETS_MASK: "which logits are the targets'",
    MemoryTerm.EMBEDDING_GRAD: "gradient of the embedding",
    MemoryTerm.FURTHER_GRADS: "gradients of a second prediction and of its lookup",
}


Terms = dict[MemoryTerm, int]
"""Bytes, by term."""


def fullest(moments: Iterable[Terms]) -> Terms:
    return max(moments, key=lambda terms: sum(terms.values()))


def label(term: str) -> str:
    """For people; a term that only some experiment has is its own label."""
    return LABELS.get(term, term)
