// Whether a translation unit holds what begins at this line.  Needs: nothing.
// A text compiles whole; units that are given its lines between them link into the same library.

#ifdef TPGEN_FROM
#define IN_UNIT (TPGEN_FROM <= __LINE__ && __LINE__ < TPGEN_TO)
#else
#define IN_UNIT 1
#endif
