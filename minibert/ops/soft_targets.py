"""Imitation of another model's scores: the loss of distillation."""

from minibert.arrays import Array, get_array_module
from minibert.ops.stable_softmax import log_softmax

Cache = tuple


def soft_cross_entropy(
    logits: Array, teacher_logits: Array, temperature: float, denominator: float
) -> tuple[Array, Cache]:
    """How far a model's probabilities are from those of a teacher, both softened by a temperature T.

        p = softmax(z / T),   q = softmax(u / T)
        loss = T² / denominator · Σᵣ Σₖ q[r, k] (log q[r, k] − log p[r, k])

    logits z and teacher_logits u (N, K) → loss, a 0-d array, in nats: the Kullback–Leibler divergence
    KL(q ‖ p), 0 if they are equal. A larger T shows more of what the teacher thinks of the unlikely classes.
    Gradients shrink with 1/T², which the factor T² makes up for. The teacher has no derivative.

    Source: Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network".
    """
    xp = get_array_module(logits)
    log_p, _ = log_softmax(logits / temperature)  # (N, K)
    log_q, _ = log_softmax(teacher_logits / temperature)
    q = xp.exp(log_q)
    loss = (q * (log_q - log_p)).sum() * (temperature**2 / denominator)
    return loss, (log_p, q, temperature, denominator)


def soft_cross_entropy_backward(dout: Array | float, cache: Cache) -> Array:
    """Derivative of :func:`soft_cross_entropy` with respect to the logits: dlogits (N, K). dout is a scalar.

    forward: row r adds −T²/denominator · Σₖ q[k] log p[k], and a part without z. As for the cross-entropy of
    a label, whose q is 1 in one place, the derivative with respect to z[j]/T is p[j] − q[j]; and z/T changes
    by 1/T of what z changes by:

        dlogits = dout · T / denominator · (p − q)
    """
    log_p, q, temperature, denominator = cache
    xp = get_array_module(log_p)
    return (xp.exp(log_p) - q) * (dout * temperature / denominator)
