"""Part VI: data, tensor, pipeline, context and expert parallelism at once (Ch. 24 and 25).

Degrees are named after their axes: `pipe` (p), `tensor` (t), `context` (c), `expert` (e); `replicas` are ranks that
hold the same parameters. `tokens` are those of one micro-batch of one replica, b S, before any other axis splits them.
"""

import numpy as np

from lab.book.checks import at_least, count, not_negative, positive, ratio, real, share
from lab.book.memory import model_state_bytes
from lab.book.pipeline import bubble_share, ticks


def split_state_bytes(
    parameters, pipe, tensor, replicas=1, stage=0, weight_bytes=2, gradient_bytes=2, master_bytes=4, moment_bytes=8
):
    """Weights, gradients and optimizer state [B] of one device: Psi / (p t) parameters, by ZeRO stage over the replicas
    (d, or d c with context).

    Source: Ch. 24, `ch24.memory_3d`, `ch24.zero1_3d` as corrected (6-8:D-10); Ch. 27, `ch27.memory_constraint` as
    corrected (6-8:D-48).
    """
    count(pipe=pipe, tensor=tensor, replicas=replicas)
    positive(parameters=parameters)
    held = ratio(parameters, pipe * tensor)
    return model_state_bytes(held, replicas, stage, weight_bytes, gradient_bytes, master_bytes, moment_bytes)


def with_experts_bytes(dense_parameters, expert_parameters, pipe, tensor, expert, bytes_per_parameter):
    """w (Psi_dense / (p t) + Psi_experts / (p t e)) bytes of one device. Source: Ch. 25, `ch25.memory_5d` as corrected
    (6-8:D-32)."""
    not_negative(dense_parameters=dense_parameters, expert_parameters=expert_parameters)
    count(pipe=pipe, tensor=tensor, expert=expert)
    positive(bytes_per_parameter=bytes_per_parameter)
    return bytes_per_parameter * (
        ratio(dense_parameters, pipe * tensor) + ratio(expert_parameters, pipe * tensor * expert)
    )


def expert_bytes(experts, parameters_per_expert, bytes_per_element, pipe=1, tensor=1, expert=1):
    """E Psi_expert w / (p t e) bytes of one device. Source: Ch. 25, `ch25.expert_memory`."""
    positive(experts=experts, parameters_per_expert=parameters_per_expert, bytes_per_element=bytes_per_element)
    count(pipe=pipe, tensor=tensor, expert=expert)
    return ratio(experts * parameters_per_expert * bytes_per_element, pipe * tensor * expert)


def saved_activation_bytes(tokens, embed, layers, tensor=1, context=1, in_flight=1, bytes_per_element_saved=34):
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


def stage_compute_s(parameters, tokens, pipe, tensor, flops_per_s, efficiency=1.0):
    """6 Psi b S / (p t F e): forward and backward pass of one micro-batch in one stage, without attention's products of
    queries and keys.

    Source: Ch. 24, `ch24.compute_time` as corrected (6-8:D-12).
    """
    count(pipe=pipe, tensor=tensor)
    positive(parameters=parameters, tokens=tokens, flops_per_s=flops_per_s, efficiency=efficiency)
    return 6 * parameters * tokens / (pipe * tensor * flops_per_s * efficiency)


def pipelined_step_s(micro_batches, pipe, micro_batch_s, exposed_s=0.0):
    """(m + p - 1) t + T_exposed: equal stages, messages between them hidden. Source: Ch. 24, `ch24.step_time`."""
    count(pipe=pipe)
    positive(micro_batch_s=micro_batch_s)
    not_negative(exposed_s=exposed_s)
    return ticks(pipe, micro_batches) * micro_batch_s + exposed_s


def interleaving_saves_s(step_s, pipe, micro_batches, chunks):
    """T (p - 1) (1 - 1 / v) / (m + p - 1) of a 1F1B step of T seconds. Source: Ch. 24, `ch24.interleave_breakeven`."""
    count(pipe=pipe, chunks=chunks)
    positive(step_s=step_s, micro_batches=micro_batches)
    return step_s * real(bubble_share(pipe, micro_batches)) * (1 - 1 / chunks)


def composed_efficiency(bubble, compute_s, tensor_s, data_s):
    """(1 - bubble) T_c / (T_c + T_t) T / (T + T_d), T = (T_c + T_t) / (1 - bubble), nothing hidden; `compute_s`,
    `tensor_s` of all micro-batches.

    Source: Ch. 24, `ch24.search_3d`.
    """
    share(bubble=bubble)
    positive(compute_s=compute_s)
    not_negative(tensor_s=tensor_s, data_s=data_s)
    return compute_s / (np.divide(compute_s + tensor_s, 1 - bubble) + data_s)


def data_parallel_growth(replicas, times):
    """(k d - 1) / (k (d - 1)): a ring all_reduce over k d ranks against one over d, bytes that a rank sends.

    Source: Ch. 24, `ch24.dp_weak_scaling`; Ch. 25, `ch25.dp_latency`.
    """
    positive(times=times)
    count(replicas=replicas)
    at_least(2, replicas=replicas)
    return ratio(times * replicas - 1, times * (replicas - 1))


def gpt_parameters(layers, embed, vocab, length):
    """12 L H^2 (1 + 13 / (12 H) + (V + S) / (12 L H)). Source: Ch. 24, `ch24.case_megatron` (Narayanan et al. 2021, eq.
    2)."""
    positive(layers=layers, embed=embed, vocab=vocab, length=length)
    return 12 * layers * embed**2 + 13 * layers * embed + (vocab + length) * embed


def trained_flops_per_s(parameters, tokens, devices, step_s, flops_per_parameter=6):
    """c Psi D / (N T) of one device; c = 6, or 8 where the forward pass is run twice. Source: Ch. 24,
    `ch24.case_megatron`."""
    count(devices=devices)
    positive(parameters=parameters, tokens=tokens, step_s=step_s, flops_per_parameter=flops_per_parameter)
    return flops_per_parameter * parameters * tokens / (devices * step_s)
