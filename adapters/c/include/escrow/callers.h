// SPDX-License-Identifier: Apache-2.0
// escrow/escrow.h, with the lines of its includer: errors and reports name the line of each call
// here that claims, launches or runs. Such a call is a macro then, which says escrow_set_caller().
#ifndef ESCROW_CALLERS_H
#define ESCROW_CALLERS_H

#include <escrow/escrow.h>

#define ESCROW_HERE(call) (escrow_set_caller(__FILE__, __LINE__), (call))
#define escrow_allocator_allocate(...) ESCROW_HERE(escrow_allocator_allocate(__VA_ARGS__))
#define escrow_allocator_allocate_for_host(...) \
  ESCROW_HERE(escrow_allocator_allocate_for_host(__VA_ARGS__))
#define escrow_allocator_allocate_kept(...) ESCROW_HERE(escrow_allocator_allocate_kept(__VA_ARGS__))
#define escrow_allocator_allocate_sync(...) ESCROW_HERE(escrow_allocator_allocate_sync(__VA_ARGS__))
#define escrow_pool_claim(...) ESCROW_HERE(escrow_pool_claim(__VA_ARGS__))
#define escrow_pool_claim_for_host(...) ESCROW_HERE(escrow_pool_claim_for_host(__VA_ARGS__))
#define escrow_pool_claim_kept(...) ESCROW_HERE(escrow_pool_claim_kept(__VA_ARGS__))
#define escrow_exec_launch(...) ESCROW_HERE(escrow_exec_launch(__VA_ARGS__))
#define escrow_exec_launch_many(...) ESCROW_HERE(escrow_exec_launch_many(__VA_ARGS__))
#define escrow_hoisted_launch(...) ESCROW_HERE(escrow_hoisted_launch(__VA_ARGS__))
#define escrow_group_run(...) ESCROW_HERE(escrow_group_run(__VA_ARGS__))

#endif
