// The files of the folder page, embedded by CMake as they are.
#pragma once

namespace prun::draw {

extern const char* const kPageHtml;
extern const char* const kPageCss;
extern const char* const kPageDataJs;
extern const char* const kPageViewJs;
extern const char* const kPageCurvesJs;
extern const char* const kPageJs;

}  // namespace prun::draw
