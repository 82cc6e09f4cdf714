//! A connection whose peer may not keep the server waiting: neither for its first words, before it is known which
//! version of HTTP it speaks, nor by leaving answers unread. Every other wait has its own limit: the head and the
//! body of a call, and the pings of HTTP/2.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// What a connection of HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long a peer may keep us waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For its first words.
    pub(crate) greeting: Duration,
    /// With an answer that it does not read.
    pub(crate) unread: Duration,
}

/// A stream with such a peer.
pub(crate) struct Patient<T> {
    stream: T,
    patience: Patience,
    /// Until it is known which HTTP is spoken, and how much of the preface was heard so far.
    greeting: Option<(Pin<Box<Sleep>>, usize)>,
    /// Since when the peer does not read.
    unread: Option<Pin<Box<Sleep>>>,
}

impl<T> Patient<T> {
    pub(crate) fn new(stream: T, patience: Patience) -> Self {
        let greeting = Some((Box::pin(tokio::time::sleep(patience.greeting)), 0));
        Self { stream, patience, greeting, unread: None }
    }

    /// More was heard: the greeting is over once it is all of the preface, or something else.
    fn hear(&mut self, bytes: &[u8]) {
        let Some((_, heard)) = &mut self.greeting else { return };
        let is_preface = PREFACE[*heard..].starts_with(bytes);
        *heard += bytes.len();
        if !is_preface || *heard == PREFACE.len() || bytes.is_empty() {
            self.greeting = None;
        }
    }

    /// Notes whether the peer takes what is written, and ends the connection if it has not for too long.
    fn written<R>(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if wrote.is_ready() {
            self.unread = None;
            return wrote;
        }
        let limit = self.patience.unread;
        let unread = self.unread.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(unread.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buffer) {
            Poll::Ready(read) => {
                self.hear(&buffer.filled()[before..]);
                Poll::Ready(read)
            }
            Poll::Pending => match &mut self.greeting {
                Some((patience, _)) => {
                    ready!(patience.as_mut().poll(cx));
                    Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
                }
                None => Poll::Pending,
            },
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.written(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.written(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.written(cx, closed)
    }
}
