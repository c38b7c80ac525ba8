#include "controller.h"

/* 1: one position heavier, -1: one lighter, 0: stay.
 *
 * rho < t / 65536 as compute * 65536 < t * moving: without a load or a store rho is above every threshold.  Counters beyond 32 bits lose
 * the bits below, in both alike, so both products fit 64 bits.
 */
static int32_t direction(const tilefarm_rule *rule, uint32_t position, const tilefarm_seen *seen)
{
    uint64_t compute = seen->compute_cycles;
    uint64_t moving = seen->load_store_cycles;

    while ((compute | moving) > UINT32_MAX) {
        compute >>= 1;
        moving >>= 1;
    }
    compute <<= 16;
    if (position + 1u < rule->positions && compute < rule->t_min[position] * moving) {
        return 1;
    }
    if (position > 0u && compute >= rule->t_max[position - 1u] * moving) {
        return -1;
    }
    return 0;
}

uint32_t tilefarm_fitting(const tilefarm_grant *needs, uint32_t rules, const tilefarm_grant *granted)
{
    uint32_t at = 0u;

    while (at < rules
           && (needs[at].l1_bytes > granted->l1_bytes || needs[at].shared_bytes > granted->shared_bytes
               || needs[at].cores > granted->cores)) {
        at++;
    }
    return at;
}

uint32_t tilefarm_start(const tilefarm_rule *rule, tilefarm_state *state)
{
    state->variant = rule->ladder[0];
    state->position = 0u;
    state->leaning = 0;
    state->since = 0u;
    return state->variant;
}

uint32_t tilefarm_step(const tilefarm_rule *rule, tilefarm_state *state, const tilefarm_seen *seen)
{
    int32_t wish = direction(rule, state->position, seen);

    if (wish == 0) {
        state->leaning = 0;
        return state->variant;
    }
    if (wish != state->leaning) {
        state->leaning = wish;
        state->since = seen->start;
    }
    if (seen->end - state->since < rule->slice_cycles) {
        return state->variant;
    }
    state->position = wish > 0 ? state->position + 1u : state->position - 1u;
    state->variant = rule->ladder[state->position];
    state->leaning = 0;
    state->since = 0u;
    return state->variant;
}
