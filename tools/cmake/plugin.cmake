# prun_plugin, for the transports of this repository and, installed next to prunConfig.cmake, for external ones.

# prun_plugin(name SOURCES a.cc ... [LINKS lib ...] [AUTO] [LOCAL_ONLY] [ENCRYPTS] [MEMORY host cuda]
#             [NOT_CLAIMED item ...])
# adds the target prun_NAME, a transport that prun loads at run time. It compiles against the public headers and prun/sdk,
# and exports only prun_transport_v1. The options are written to NAME.plugin next to the library, so that the runtime need
# not load a plugin to reject it:
#
#     AUTO          `--transport auto` may choose it
#     LOCAL_ONLY    it connects ranks of one host only
#     MEMORY        memory kinds that it accepts (default: host)
#     ENCRYPTS      with its option encrypt=1 it encrypts data between hosts
#     NOT_CLAIMED   items of `prun conform` that it need not pass
#
# Both files are in lib/prun/plugins of the build folder, and of the prefix once installed.
function(prun_plugin name)
  cmake_parse_arguments(ARG "AUTO;LOCAL_ONLY;ENCRYPTS" "" "SOURCES;LINKS;MEMORY;NOT_CLAIMED" ${ARGN})
  if(NOT ARG_SOURCES OR ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "prun_plugin(${name} SOURCES a.cc ... [LINKS ...] [AUTO] [LOCAL_ONLY] [ENCRYPTS] [MEMORY ...] [NOT_CLAIMED ...]): "
      "SOURCES missing, or words that mean nothing: '${ARG_UNPARSED_ARGUMENTS}'")
  endif()
  add_library(prun_${name} MODULE ${ARG_SOURCES})
  target_link_libraries(prun_${name} PRIVATE prun::transport ${ARG_LINKS})
  set(_dir ${CMAKE_BINARY_DIR}/lib/prun/plugins)
  set_target_properties(prun_${name} PROPERTIES PREFIX "" OUTPUT_NAME ${name} SUFFIX .so LIBRARY_OUTPUT_DIRECTORY ${_dir}
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  if(NOT ARG_MEMORY)
    set(ARG_MEMORY host)
  endif()
  list(JOIN ARG_MEMORY " " _memory)
  foreach(_flag AUTO LOCAL_ONLY)
    if(ARG_${_flag})
      set(_${_flag} 1)
    else()
      set(_${_flag} 0)
    endif()
  endforeach()
  set(_manifest "auto = ${_AUTO}\nlocal_only = ${_LOCAL_ONLY}\nmemory = ${_memory}\n")
  if(ARG_ENCRYPTS)
    string(APPEND _manifest "encrypts = 1\n")
  endif()
  if(ARG_NOT_CLAIMED)
    list(JOIN ARG_NOT_CLAIMED " " _items)
    string(APPEND _manifest "not_claimed = ${_items}\n")
  endif()
  file(CONFIGURE OUTPUT ${_dir}/${name}.plugin CONTENT "${_manifest}")
  set(_optional)
  if(TARGET plugins)  # prun's own build: the optional target `plugins` builds all of them
    add_dependencies(plugins prun_${name})
    set(_optional OPTIONAL)
  endif()
  install(TARGETS prun_${name} LIBRARY DESTINATION lib/prun/plugins ${_optional})
  install(FILES ${_dir}/${name}.plugin DESTINATION lib/prun/plugins)
endfunction()
