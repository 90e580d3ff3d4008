// SPDX-License-Identifier: Apache-2.0
// What the C tests have from the C++ program that runs them: expectations, kernels, faults.
#ifndef ESCROW_C_WORLD_H
#define ESCROW_C_WORLD_H

#include <escrow/escrow.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct c_case {
  char const* name;
  void (*run)(void);
} c_case;
extern c_case const c_memory_cases[];
extern size_t const c_memory_cases_count;
extern c_case const c_order_cases[];
extern size_t const c_order_cases_count;
extern c_case const c_lease_cases[];
extern size_t const c_lease_cases_count;
extern c_case const c_graph_cases[];
extern size_t const c_graph_cases_count;
extern c_case const c_client_cases[];
extern size_t const c_client_cases_count;

// How an operation went. Taken: it failed, and escrow_last_error_took_object().
typedef enum c_outcome { c_not_done, c_done, c_taken } c_outcome;

// One function, in a state of its own, for the tests that let each of its calls fail.
typedef struct c_operation {
  char const* name;
  void (*prepare)(void);
  escrow_status (*act)(void);
  void (*end)(c_outcome how);
} c_operation;
extern c_operation const c_operations[];
extern size_t const c_operation_count;

bool c_expect(bool condition, char const* text, char const* file, int line);
bool c_expect_status(escrow_status got, escrow_status expected, char const* text, char const* file,
                     int line);
// True soon, or false.
bool c_wait_until(bool (*condition)(void));
// True if it is false for a while.
bool c_stays_false(bool (*condition)(void));
cudaStream_t c_stream(int number);  // 0 to 2: a stream that lives as long as the program
void c_sync(int number);
// Work on the stream does not end until c_go().
void c_hold_up(cudaStream_t stream);
void c_go(void);

#define EXPECT(condition) c_expect((condition), #condition, __FILE__, __LINE__)
#define EXPECT_OK(call) c_expect_status((call), ESCROW_OK, #call, __FILE__, __LINE__)
#define EXPECT_STATUS(status, call) c_expect_status((call), status, #call, __FILE__, __LINE__)
#define EXPECT_CUDA(call) c_expect((call) == cudaSuccess, #call, __FILE__, __LINE__)
// Null was passed where it may not be; for files that include string.h.
#define REFUSED(call)                                                                           \
  do {                                                                                          \
    EXPECT_STATUS(ESCROW_USAGE_ERROR, call);                                                    \
    EXPECT(strstr(escrow_last_error(), "` is null; pass an address that is not null") != NULL); \
  } while (0)
#define CASE(name) \
  { #name, &name }

#ifdef __cplusplus
}
#endif

#endif
