# Converts PRUN_CUDA_ARCHITECTURES to options for nvcc, and rejects architectures that nvcc cannot compile for.
#
# Surprising fact: instructions of a single generation (wgmma, TMA) exist only in targets with a suffix, 90a for Hopper,
# whose PTX serves that machine code alone. Targets without a suffix share one PTX, that of the lowest, so nvcc's front
# end runs once for all of them.

set(_prun_cuda_least 80)  # mma of bf16 and cp.async

# prun_cuda_targets(VARIABLE NVCC ARCHITECTURE...): sets VARIABLE to nvcc's options --generate-code=... An architecture is
# N, N-real (machine code) or N-virtual (PTX), as in CMAKE_CUDA_ARCHITECTURES; N is 80, 90a, ...
function(prun_cuda_targets variable nvcc)
  execute_process(COMMAND ${nvcc} --list-gpu-code OUTPUT_VARIABLE _known ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+" _known "${_known}")
  list(SORT _known COMPARE NATURAL)
  list(FILTER _known EXCLUDE REGEX "^[0-7]?[0-9]$")  # below the lowest
  string(REPLACE ";" ", " _known_text "${_known}")
  set(_where "PRUN_CUDA_ARCHITECTURES=${ARGN}:")
  set(_fix "${nvcc} compiles for ${_known_text}, from 90 on also with a suffix (90a); each as N, N-real (machine code) or\
 N-virtual (PTX), for example -DPRUN_CUDA_ARCHITECTURES=\"80-real;90a-real;80-virtual\"")
  if("${ARGN}" STREQUAL "")
    message(FATAL_ERROR "${_where} no architecture is named; ${_fix}")
  endif()

  set(_shared)  # the lowest one without a suffix
  foreach(_each ${ARGN})
    if(NOT _each MATCHES "^([0-9]+)([af]?)(-real|-virtual)?$")
      string(REGEX REPLACE "[^0-9]" "" _likely "${_each}")
      set(_hint)
      if(_likely IN_LIST _known)
        set(_hint " (did you mean '${_likely}'?)")
      endif()
      message(FATAL_ERROR "${_where} '${_each}' names no architecture${_hint}; ${_fix}")
    endif()
    set(_number ${CMAKE_MATCH_1})
    set(_suffix ${CMAKE_MATCH_2})
    if(_number LESS _prun_cuda_least)
      message(FATAL_ERROR
        "${_where} '${_each}' is below ${_prun_cuda_least} (Ampere), the least that prun's kernels compile for; ${_fix}")
    endif()
    # nvcc lists no target with a suffix, so a dry run checks it.
    execute_process(COMMAND ${nvcc} --dryrun --cubin --generate-code=arch=compute_${_number}${_suffix},code=sm_${_number}${_suffix}
      -x cu /dev/null -o /dev/null RESULT_VARIABLE _failed OUTPUT_QUIET ERROR_QUIET)
    if(_failed)
      message(FATAL_ERROR "${_where} nvcc does not know '${_each}'; ${_fix}")
    endif()
    if("${_suffix}" STREQUAL "" AND (NOT _shared OR _number LESS _shared))
      set(_shared ${_number})
    endif()
  endforeach()

  set(_options)
  foreach(_each ${ARGN})
    string(REGEX MATCH "^[0-9]+[af]?" _target ${_each})
    set(_ptx ${_target})
    if(_target MATCHES "^[0-9]+$")
      set(_ptx ${_shared})
    endif()
    if(NOT _each MATCHES "-virtual$")
      list(APPEND _options --generate-code=arch=compute_${_ptx},code=sm_${_target})
    endif()
    if(NOT _each MATCHES "-real$")
      list(APPEND _options --generate-code=arch=compute_${_target},code=compute_${_target})
    endif()
  endforeach()
  set(${variable} ${_options} PARENT_SCOPE)
endfunction()
