"""Part VI: data, tensor, pipeline, context and expert parallelism at once (Ch. 24 and 25).

Degrees are named after their axes: `pipe` (p), `tensor` (t), `context` (c), `expert` (e); `replicas` are ranks that
hold the same parameters. `tokens` are those of one micro-batch of one replica, b S, before any other axis splits them.
"""

from fractions import Fraction

import numpy as np

from lab.book.checks import Number, at_least, count, finite, not_negative, positive, ratio, real, share
from lab.book.memory import model_state_bytes
from lab.book.pipeline import bubble_share, ticks


def split_state_bytes(
    parameters: float,
    pipe: int,
    tensor: int,
    replicas: int = 1,
    stage: int = 0,
    weight_bytes: int = 2,
    gradient_bytes: int = 2,
    master_bytes: int = 4,
    moment_bytes: int = 8,
) -> Number:
    """Weights, gradients and optimizer state [B] of one device: Psi / (p t) parameters, by ZeRO stage over the replicas
    (d, or d c with context).

    Source: Ch. 24, `ch24.memory_3d`, `ch24.zero1_3d` as corrected (6-8:D-10); Ch. 27, `ch27.memory_constraint` as
    corrected (6-8:D-48).
    """
    count(pipe=pipe, tensor=tensor, replicas=replicas)
    positive(parameters=parameters)
    held = ratio(parameters, pipe * tensor)
    return model_state_bytes(held, replicas, stage, weight_bytes, gradient_bytes, master_bytes, moment_bytes)


def with_experts_bytes(
    dense_parameters: int, expert_parameters: int, pipe: int, tensor: int, expert: int, bytes_per_parameter: int
) -> Fraction:
    """w (Psi_dense / (p t) + Psi_experts / (p t e)) bytes of one device. Source: Ch. 25, `ch25.memory_5d` as corrected
    (6-8:D-32)."""
    not_negative(dense_parameters=dense_parameters, expert_parameters=expert_parameters)
    count(pipe=pipe, tensor=tensor, expert=expert)
    positive(bytes_per_parameter=bytes_per_parameter)
    return bytes_per_parameter * (
        ratio(dense_parameters, pipe * tensor) + ratio(expert_parameters, pipe * tensor * expert)
    )


def expert_bytes(
    experts: int, parameters_per_expert: int, bytes_per_element: int, pipe: int = 1, tensor: int = 1, expert: int = 1
) -> Fraction:
    """E Psi_expert w / (p t e) bytes of one device. Source: Ch. 25, `ch25.expert_memory`."""
    positive(experts=experts, parameters_per_expert=parameters_per_expert, bytes_per_element=bytes_per_element)
    count(pipe=pipe, tensor=tensor, expert=expert)
    return ratio(experts * parameters_per_expert * bytes_per_element, pipe * tensor * expert)


def saved_activation_bytes(
    tokens: int,
    embed: int,
    layers: int,
    tensor: int = 1,
    context: int = 1,
    in_flight: int = 1,
    bytes_per_element_saved: int = 34,
) -> Fraction:
    """34 b S H / (t c) bytes a layer, for the layers of a stage and the micro-batches that it has in flight.

    34 B of each element of the stream: a GPT layer in 16 bits with dropout, sequence parallelism and no recomputation,
    its attention not keeping scores; 2, and neither tensor nor sequence split, where each layer is recomputed from its
    input.
    Source: Ch. 24, `ch24.activation_3d` as corrected (6-8:D-11); Ch. 25, `ch25.activation_growth`, `ch25.ex_70b_256k`
    (6-8:D-33).
    """
    count(tensor=tensor, context=context)
    positive(tokens=tokens, embed=embed, layers=layers)
    positive(in_flight=in_flight, bytes_per_element_saved=bytes_per_element_saved)
    return ratio(tokens * embed * layers * in_flight * bytes_per_element_saved, tensor * context)


def stage_compute_s(
    parameters: float,
    tokens: float,
    pipe: int,
    tensor: int,
    flops_per_s: float,
    efficiency: float = 1.0,
    flops_per_parameter: int = 6,
) -> float:
    """c Psi b S / (p t F e): forward and backward pass of one micro-batch in one stage, without attention's products of
    queries and keys; c = 6, or 8 where the forward pass is run twice.

    Source: Ch. 24, `ch24.compute_time` as corrected (6-8:D-12); c as in `ch32.hfu` as corrected (6-8:D-99).
    """
    count(pipe=pipe, tensor=tensor)
    positive(parameters=parameters, tokens=tokens, flops_per_s=flops_per_s, efficiency=efficiency)
    positive(flops_per_parameter=flops_per_parameter)
    return flops_per_parameter * parameters * tokens / (pipe * tensor * flops_per_s * efficiency)


def pipelined_step_s(micro_batches: int, pipe: int, micro_batch_s: float, exposed_s: float = 0.0) -> float:
    """(m + p - 1) t + T_exposed: equal stages, messages between them hidden. Source: Ch. 24, `ch24.step_time`.

    1F1B hides few of them: `pipeline.messages_waited`.
    """
    count(pipe=pipe)
    positive(micro_batch_s=micro_batch_s)
    not_negative(exposed_s=exposed_s)
    return ticks(pipe, micro_batches) * micro_batch_s + exposed_s


def interleaving_saves_s(step_s: float, pipe: int, micro_batches: int, chunks: int) -> float:
    """T (p - 1) (1 - 1 / v) / (m + p - 1) of a 1F1B step of T seconds. Source: Ch. 24, `ch24.interleave_breakeven`."""
    finite(pipe=pipe)
    count(pipe=pipe, chunks=chunks)
    positive(step_s=step_s, micro_batches=micro_batches)
    return step_s * real(bubble_share(pipe, micro_batches)) * (1 - 1 / chunks)


def composed_efficiency(bubble: float, compute_s: float, tensor_s: float, data_s: float) -> float:
    """(1 - bubble) T_c / (T_c + T_t) T / (T + T_d), T = (T_c + T_t) / (1 - bubble), nothing hidden; `compute_s`,
    `tensor_s` of all micro-batches.

    Source: Ch. 24, `ch24.search_3d`.
    """
    share(bubble=bubble)
    positive(compute_s=compute_s)
    not_negative(tensor_s=tensor_s, data_s=data_s)
    return compute_s / (np.divide(compute_s + tensor_s, 1 - bubble) + data_s)


def data_parallel_growth(replicas: int, times: int) -> Fraction:
    """(k d - 1) / (k (d - 1)): a ring all_reduce over k d ranks against one over d, bytes that a rank sends.

    Source: Ch. 24, `ch24.dp_weak_scaling`; Ch. 25, `ch25.dp_latency`.
    """
    finite(replicas=replicas, times=times)
    positive(times=times)
    count(replicas=replicas)
    at_least(2, replicas=replicas)
    return ratio(times * replicas - 1, times * (replicas - 1))


def gpt_parameters(layers: int, embed: int, vocab: int, length: int) -> int:
    """12 L H^2 (1 + 13 / (12 H) + (V + S) / (12 L H)). Source: Ch. 24, `ch24.case_megatron` (Narayanan et al. 2021, eq.
    2)."""
    positive(layers=layers, embed=embed, vocab=vocab, length=length)
    return 12 * layers * embed**2 + 13 * layers * embed + (vocab + length) * embed


def trained_flops_per_s(
    parameters: float, tokens: float, devices: int, step_s: float, flops_per_parameter: int = 6
) -> float:
    """c Psi D / (N T) of one device; c = 6, or 8 where the forward pass is run twice. Source: Ch. 24,
    `ch24.case_megatron`."""
    count(devices=devices)
    positive(parameters=parameters, tokens=tokens, step_s=step_s, flops_per_parameter=flops_per_parameter)
    return flops_per_parameter * parameters * tokens / (devices * step_s)
