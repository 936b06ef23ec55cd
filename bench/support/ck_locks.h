// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Two locks of Concurrency Kit. Its headers are C and no C++, so they are behind functions.

#ifdef __cplusplus
extern "C" {
#endif

/// Room for a lock, or a node of one. All zero at first.
struct ck_line {
    unsigned char bytes[64];
} __attribute__((aligned(64)));

void ck_ticket_lock(struct ck_line* lock);
void ck_ticket_unlock(struct ck_line* lock);
void ck_mcs_lock(struct ck_line* tail, struct ck_line* node);
void ck_mcs_unlock(struct ck_line* tail, struct ck_line* node);

/// What both do in each turn of their loops. The program has it.
void ck_locks_wait(void);

#ifdef __cplusplus
}
#endif
