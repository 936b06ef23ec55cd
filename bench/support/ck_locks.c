// SPDX-License-Identifier: MIT
#include "support/ck_locks.h"

#include <ck_pr.h>
// The end of a round must reach threads that wait: see spin_wait() in lock_harness.hpp.
#define ck_pr_stall ck_locks_wait
#include <ck_spinlock.h>

_Static_assert(sizeof(struct ck_spinlock_ticket) <= sizeof(struct ck_line), "a ticket lock does not fit");
_Static_assert(sizeof(struct ck_spinlock_mcs) <= sizeof(struct ck_line), "a node does not fit");

void ck_ticket_lock(struct ck_line* lock) { ck_spinlock_ticket_lock((void*)lock); }
void ck_ticket_unlock(struct ck_line* lock) { ck_spinlock_ticket_unlock((void*)lock); }
void ck_mcs_lock(struct ck_line* tail, struct ck_line* node) { ck_spinlock_mcs_lock((void*)tail, (void*)node); }
void ck_mcs_unlock(struct ck_line* tail, struct ck_line* node) { ck_spinlock_mcs_unlock((void*)tail, (void*)node); }
