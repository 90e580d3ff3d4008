// The C tests, by name.
#ifndef ESCROW_C_CASES_H
#define ESCROW_C_CASES_H

#include "c_world.h"

void c_version_is_the_headers(void);
void c_errors_are_kept_for_each_thread(void);
void c_memory_is_used_again(void);
void c_memory_without_a_stream(void);
void c_a_limit_is_reached(void);
void c_a_graph_keeps_memory(void);
void c_descriptions_are_cut(void);
void c_structs_may_be_of_an_older_header(void);
void c_objects_are_destroyed_after_the_work(void);
void c_objects_are_destroyed_after_their_graph(void);
void c_errors_without_a_call_are_reported(void);
void c_a_resource_is_claimed_and_released(void);
void c_a_graph_keeps_a_resource(void);
void c_functions_of_a_pool_may_fail(void);
void c_pools_refuse_options_of_allocators(void);
void c_an_exec_launches_and_is_updated(void);
void c_graphs_of_a_group_share_scratch(void);
void c_a_hoisted_graph_is_released_at_once(void);
void c_a_hoisted_graph_that_is_dropped_is_leaked(void);
void c_plain_calls_can_lock_graphs(void);
void c_null_is_refused(void);

#endif
