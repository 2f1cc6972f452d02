// Repairs standard input, output and error, which the parent process may have closed.
#pragma once

namespace prun {

// Opens /dev/null in place of closed ones, because otherwise the next opened file would become standard error and
// receive messages. Call first in main.
void open_closed_streams();
// Call at the end of main: returns 1 instead of 0, with a message on standard error, if writing to standard output
// failed.
int code_with_output(int code);

}  // namespace prun
