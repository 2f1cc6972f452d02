# The three kinds of target that this project has, with the flags that all of them share.

add_library(prun_flags INTERFACE)
target_compile_options(prun_flags INTERFACE -Wall -Wextra -Wshadow -Wno-missing-field-initializers -fno-plt)
if(PRUN_WERROR)
  target_compile_options(prun_flags INTERFACE -Werror)
endif()
if(PRUN_SANITIZE)
  string(REPLACE ";" "," _sanitize "${PRUN_SANITIZE}")
  target_compile_options(prun_flags INTERFACE -fsanitize=${_sanitize} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(prun_flags INTERFACE -fsanitize=${_sanitize})
endif()
find_program(PRUN_MOLD mold)
if(PRUN_MOLD AND NOT PRUN_SANITIZE)
  target_link_options(prun_flags INTERFACE -fuse-ld=mold)
endif()

# prun_library(name SOURCES a.cc ... LINKS other ...): a static library of the runtime.
function(prun_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR}/runtime ${CMAKE_SOURCE_DIR}/runtime/include)
  target_link_libraries(${name} PUBLIC ${ARG_LINKS} PRIVATE prun_flags)
endfunction()

# prun_plugin(name SOURCES a.cc ... LINKS lib ...): a transport, loaded at run time; it sees only the public headers.
function(prun_plugin name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  add_library(prun_${name} MODULE ${ARG_SOURCES})
  target_include_directories(prun_${name} PRIVATE ${CMAKE_SOURCE_DIR}/runtime/include)
  target_link_libraries(prun_${name} PRIVATE prun_flags ${ARG_LINKS})
  set_target_properties(prun_${name} PROPERTIES PREFIX "" OUTPUT_NAME ${name}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/prun/plugins)
  install(TARGETS prun_${name} LIBRARY DESTINATION lib/prun/plugins)
endfunction()

# prun_test(name SOURCES a.cc ... LINKS lib ... [LABELS l ...] [TIMEOUT s]): a GoogleTest program, one CTest entry.
function(prun_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINKS;LABELS;ARGS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_LINKS} prun_flags GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()
