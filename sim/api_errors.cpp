// SPDX-License-Identifier: Apache-2.0
// cudaGetLastError and the names of errors.
#include "call.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace {

using namespace escrow::sim::model;  // What this file gives C names to.

struct entry {
  cudaError_t error;
  char const* text;
};

// All that CUDA has.
constexpr auto names = std::to_array<entry>({
    {cudaSuccess, "cudaSuccess"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation"},
    {cudaErrorInitializationError, "cudaErrorInitializationError"},
    {cudaErrorCudartUnloading, "cudaErrorCudartUnloading"},
    {cudaErrorProfilerDisabled, "cudaErrorProfilerDisabled"},
    {cudaErrorProfilerNotInitialized, "cudaErrorProfilerNotInitialized"},
    {cudaErrorProfilerAlreadyStarted, "cudaErrorProfilerAlreadyStarted"},
    {cudaErrorProfilerAlreadyStopped, "cudaErrorProfilerAlreadyStopped"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol"},
    {cudaErrorInvalidHostPointer, "cudaErrorInvalidHostPointer"},
    {cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer"},
    {cudaErrorInvalidTexture, "cudaErrorInvalidTexture"},
    {cudaErrorInvalidTextureBinding, "cudaErrorInvalidTextureBinding"},
    {cudaErrorInvalidChannelDescriptor, "cudaErrorInvalidChannelDescriptor"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection"},
    {cudaErrorAddressOfConstant, "cudaErrorAddressOfConstant"},
    {cudaErrorTextureFetchFailed, "cudaErrorTextureFetchFailed"},
    {cudaErrorTextureNotBound, "cudaErrorTextureNotBound"},
    {cudaErrorSynchronizationError, "cudaErrorSynchronizationError"},
    {cudaErrorInvalidFilterSetting, "cudaErrorInvalidFilterSetting"},
    {cudaErrorInvalidNormSetting, "cudaErrorInvalidNormSetting"},
    {cudaErrorMixedDeviceExecution, "cudaErrorMixedDeviceExecution"},
    {cudaErrorNotYetImplemented, "cudaErrorNotYetImplemented"},
    {cudaErrorMemoryValueTooLarge, "cudaErrorMemoryValueTooLarge"},
    {cudaErrorStubLibrary, "cudaErrorStubLibrary"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver"},
    {cudaErrorCallRequiresNewerDriver, "cudaErrorCallRequiresNewerDriver"},
    {cudaErrorInvalidSurface, "cudaErrorInvalidSurface"},
    {cudaErrorDuplicateVariableName, "cudaErrorDuplicateVariableName"},
    {cudaErrorDuplicateTextureName, "cudaErrorDuplicateTextureName"},
    {cudaErrorDuplicateSurfaceName, "cudaErrorDuplicateSurfaceName"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable"},
    {cudaErrorIncompatibleDriverContext, "cudaErrorIncompatibleDriverContext"},
    {cudaErrorMissingConfiguration, "cudaErrorMissingConfiguration"},
    {cudaErrorPriorLaunchFailure, "cudaErrorPriorLaunchFailure"},
    {cudaErrorLaunchMaxDepthExceeded, "cudaErrorLaunchMaxDepthExceeded"},
    {cudaErrorLaunchFileScopedTex, "cudaErrorLaunchFileScopedTex"},
    {cudaErrorLaunchFileScopedSurf, "cudaErrorLaunchFileScopedSurf"},
    {cudaErrorSyncDepthExceeded, "cudaErrorSyncDepthExceeded"},
    {cudaErrorLaunchPendingCountExceeded, "cudaErrorLaunchPendingCountExceeded"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction"},
    {cudaErrorNoDevice, "cudaErrorNoDevice"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice"},
    {cudaErrorDeviceNotLicensed, "cudaErrorDeviceNotLicensed"},
    {cudaErrorSoftwareValidityNotEstablished, "cudaErrorSoftwareValidityNotEstablished"},
    {cudaErrorStartupFailure, "cudaErrorStartupFailure"},
    {cudaErrorInvalidKernelImage, "cudaErrorInvalidKernelImage"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized"},
    {cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed"},
    {cudaErrorUnmapBufferObjectFailed, "cudaErrorUnmapBufferObjectFailed"},
    {cudaErrorArrayIsMapped, "cudaErrorArrayIsMapped"},
    {cudaErrorAlreadyMapped, "cudaErrorAlreadyMapped"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice"},
    {cudaErrorAlreadyAcquired, "cudaErrorAlreadyAcquired"},
    {cudaErrorNotMapped, "cudaErrorNotMapped"},
    {cudaErrorNotMappedAsArray, "cudaErrorNotMappedAsArray"},
    {cudaErrorNotMappedAsPointer, "cudaErrorNotMappedAsPointer"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable"},
    {cudaErrorUnsupportedLimit, "cudaErrorUnsupportedLimit"},
    {cudaErrorDeviceAlreadyInUse, "cudaErrorDeviceAlreadyInUse"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported"},
    {cudaErrorInvalidPtx, "cudaErrorInvalidPtx"},
    {cudaErrorInvalidGraphicsContext, "cudaErrorInvalidGraphicsContext"},
    {cudaErrorNvlinkUncorrectable, "cudaErrorNvlinkUncorrectable"},
    {cudaErrorJitCompilerNotFound, "cudaErrorJitCompilerNotFound"},
    {cudaErrorUnsupportedPtxVersion, "cudaErrorUnsupportedPtxVersion"},
    {cudaErrorJitCompilationDisabled, "cudaErrorJitCompilationDisabled"},
    {cudaErrorUnsupportedExecAffinity, "cudaErrorUnsupportedExecAffinity"},
    {cudaErrorUnsupportedDevSideSync, "cudaErrorUnsupportedDevSideSync"},
    {cudaErrorContained, "cudaErrorContained"},
    {cudaErrorInvalidSource, "cudaErrorInvalidSource"},
    {cudaErrorFileNotFound, "cudaErrorFileNotFound"},
    {cudaErrorSharedObjectSymbolNotFound, "cudaErrorSharedObjectSymbolNotFound"},
    {cudaErrorSharedObjectInitFailed, "cudaErrorSharedObjectInitFailed"},
    {cudaErrorOperatingSystem, "cudaErrorOperatingSystem"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState"},
    {cudaErrorLossyQuery, "cudaErrorLossyQuery"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound"},
    {cudaErrorNotReady, "cudaErrorNotReady"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout"},
    {cudaErrorLaunchIncompatibleTexturing, "cudaErrorLaunchIncompatibleTexturing"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled"},
    {cudaErrorSetOnActiveProcess, "cudaErrorSetOnActiveProcess"},
    {cudaErrorContextIsDestroyed, "cudaErrorContextIsDestroyed"},
    {cudaErrorAssert, "cudaErrorAssert"},
    {cudaErrorTooManyPeers, "cudaErrorTooManyPeers"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress"},
    {cudaErrorInvalidAddressSpace, "cudaErrorInvalidAddressSpace"},
    {cudaErrorInvalidPc, "cudaErrorInvalidPc"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure"},
    {cudaErrorCooperativeLaunchTooLarge, "cudaErrorCooperativeLaunchTooLarge"},
    {cudaErrorTensorMemoryLeak, "cudaErrorTensorMemoryLeak"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady"},
    {cudaErrorSystemDriverMismatch, "cudaErrorSystemDriverMismatch"},
    {cudaErrorCompatNotSupportedOnDevice, "cudaErrorCompatNotSupportedOnDevice"},
    {cudaErrorMpsConnectionFailed, "cudaErrorMpsConnectionFailed"},
    {cudaErrorMpsRpcFailure, "cudaErrorMpsRpcFailure"},
    {cudaErrorMpsServerNotReady, "cudaErrorMpsServerNotReady"},
    {cudaErrorMpsMaxClientsReached, "cudaErrorMpsMaxClientsReached"},
    {cudaErrorMpsMaxConnectionsReached, "cudaErrorMpsMaxConnectionsReached"},
    {cudaErrorMpsClientTerminated, "cudaErrorMpsClientTerminated"},
    {cudaErrorCdpNotSupported, "cudaErrorCdpNotSupported"},
    {cudaErrorCdpVersionMismatch, "cudaErrorCdpVersionMismatch"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread"},
    {cudaErrorTimeout, "cudaErrorTimeout"},
    {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure"},
    {cudaErrorExternalDevice, "cudaErrorExternalDevice"},
    {cudaErrorInvalidClusterSize, "cudaErrorInvalidClusterSize"},
    {cudaErrorFunctionNotLoaded, "cudaErrorFunctionNotLoaded"},
    {cudaErrorInvalidResourceType, "cudaErrorInvalidResourceType"},
    {cudaErrorInvalidResourceConfiguration, "cudaErrorInvalidResourceConfiguration"},
    {cudaErrorUnknown, "cudaErrorUnknown"},
    {cudaErrorApiFailureBase, "cudaErrorApiFailureBase"},
});

// What the simulator returns by itself, and what tests inject.
constexpr auto descriptions = std::to_array<entry>({
    {cudaSuccess, "no error"},
    {cudaErrorInvalidValue, "invalid argument"},
    {cudaErrorMemoryAllocation, "out of memory"},
    {cudaErrorInitializationError, "initialization error"},
    {cudaErrorCudartUnloading, "driver shutting down"},
    {cudaErrorInvalidConfiguration, "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "invalid device function"},
    {cudaErrorNoDevice, "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "invalid resource handle"},
    {cudaErrorIllegalState, "the operation cannot be performed in the present state"},
    {cudaErrorLossyQuery, "attempted introspection would be semantically lossy"},
    {cudaErrorNotReady, "device not ready"},
    {cudaErrorIllegalAddress, "an illegal memory access was encountered"},
    {cudaErrorLaunchTimeout, "the launch timed out and was terminated"},
    {cudaErrorAssert, "device-side assert triggered"},
    {cudaErrorLaunchFailure, "unspecified launch failure"},
    {cudaErrorNotPermitted, "operation not permitted"},
    {cudaErrorNotSupported, "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge,
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit,
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent,
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread,
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorGraphExecUpdateFailure,
     "the graph update was not performed because it included changes which violated constraints "
     "specific to instantiated graph update"},
    {cudaErrorUnknown, "unknown error"},
});

char const* find(std::span<entry const> table, cudaError_t error, char const* otherwise) {
  auto const found = std::ranges::find(table, error, &entry::error);
  return found == table.end() ? otherwise : found->text;
}

// A device's own failure is never cleared.
cudaError_t last_error(bool clear) {
  return call(clear ? "cudaGetLastError" : "cudaPeekAtLastError",
              in_callbacks | outlives_fault | never_failed | without_context, [&](api_call& c) {
                auto const error = c.me.last_error;
                if (clear && error != fault()) c.me.last_error = cudaSuccess;
                return error;
              });
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaGetLastError() {
  return last_error(true);
}

cudaError_t CUDARTAPI cudaPeekAtLastError() {
  return last_error(false);
}

char const* CUDARTAPI cudaGetErrorName(cudaError_t error) {
  return find(names, error, "unrecognized error code");
}

char const* CUDARTAPI cudaGetErrorString(cudaError_t error) {
  return find(descriptions, error, cudaGetErrorName(error));
}
}
