// What a script may learn about files and folders: where they are, how large, what their headers say.
#pragma once
#include "script/host.h"

namespace prun {

int data_files(lua_State* L, Host& host);
int folder_info(lua_State* L, Host& host);
int token_header(lua_State* L, Host& host);
int array_header(lua_State* L, Host& host);

}  // namespace prun
