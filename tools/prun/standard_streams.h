// Repairs standard input, output and error, which the parent process may have closed.
#pragma once

namespace prun {

// Opens /dev/null in place of closed ones, because otherwise the next opened file would become standard error and
// receive messages. Call first in main.
void open_closed_streams();
// Flushes standard output; code_with_output reports a failure with its errno.
void flush_output();
// Call at the end of main: returns 1 instead of 0, with a message on standard error, if writing to standard output
// failed. `earlier`: the errno of a failed write that the caller has detected; 0 = none.
int code_with_output(int code, int earlier = 0);

}  // namespace prun
